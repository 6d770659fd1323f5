"""The measured work: the sweep of collectives, and helpers for trainings. Both run in ranks.

pytest's process reads the tables of operations, element types and sizes too, so they import no torch.
"""

COMMUNICATION = ("on", "off")
"""Whether ranks send gradients (without, a step takes its computing alone); the first value is the default."""

RATE_UNCERTAINTY = "samples_per_second_uncertainty"
RATE_JITTER = "samples_per_second_jitter"

RATE_OF = "loop"  # fact of the rate: the loop that was timed
RATE_COMMUNICATION = "communication"  # fact: one of :data:`COMMUNICATION`
RATE_RANKS_PER_NODE = "ranks_per_node"  # fact: of the ranks, on this rank's host

EFFICIENCY = "scaling_efficiency"
"""Derived metric of runs at ``workers``; the name of the fixture's call, if any, stands before it."""
