"""What people and other programs read of a run: tables, failure texts, GitHub's summary. Renders, and decides nothing."""
