"""Engines: what changes the membership of a job, and their table."""
