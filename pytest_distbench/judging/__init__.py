"""Launches in, verdicts out. Pure: no clock, no file, no machine."""
