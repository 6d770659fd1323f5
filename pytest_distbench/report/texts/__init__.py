"""What people read of a run in a terminal: failures, tables of verdicts, summaries."""
