"""Is this machine fit to measure? Each check says what it found and, where that is not good, what to do."""
