"""This machine: its hardware, GPUs and drivers, locks, and what may be recorded of it."""
