"""Data sets of the trainings: a module for each format, and one table of sets. Each generates a small set, too."""
