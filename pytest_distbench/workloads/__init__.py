"""What is measured: the sweep of collectives, and helpers for trainings. Both run in ranks.

The tables of operations, element types and sizes are read by pytest's process too, and import no torch.
"""
