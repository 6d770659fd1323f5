"""What people and other programs read: tables, failure texts, the run record, GitHub's summary. Decides nothing."""
