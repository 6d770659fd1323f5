"""Results on disk: baselines, run records, and what is done with them."""
