"""What is measured: the sweep of collectives, and helpers for trainings. Both run in ranks.

The tables of operations, element types and sizes are read by pytest's process too, and import no torch.
"""

COMMUNICATION = ("on", "off")
"""Whether the ranks send gradients: without it, a step takes what it computes. The first is the default."""

RATE_UNCERTAINTY = "samples_per_second_uncertainty"
RATE_JITTER = "samples_per_second_jitter"

RATE_OF = "loop"  # fact of the rate: the loop that was timed
RATE_COMMUNICATION = "communication"  # fact: one of :data:`COMMUNICATION`
RATE_RANKS_PER_NODE = "ranks_per_node"  # fact: of the ranks, on this rank's host

EFFICIENCY = "scaling_efficiency"
"""Derived of the runs, at so many ``workers``; where the call of the fixture has a name, that stands before it."""
