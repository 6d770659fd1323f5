"""What people and other programs read of a run: tables, failure texts, summaries for GitHub. Decides nothing."""
