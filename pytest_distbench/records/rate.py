"""What a scaling test records of its rates: names that ranks and the fixture write, and tables read."""

from __future__ import annotations

COMMUNICATION = ("on", "off")
"""Whether the ranks send gradients: without it, a step takes what it computes. The first is the default."""

RATE = "samples_per_second"
RATE_UNCERTAINTY = f"{RATE}_uncertainty"
RATE_JITTER = f"{RATE}_jitter"

SAMPLES = "samples_per_step"
"""Of all ranks in an iteration of the loop."""

RATE_OF = "loop"
"""Fact of the rate: the loop that was timed."""
RATE_COMMUNICATION = "communication"
"""Fact: one of :data:`COMMUNICATION`."""
RATE_RANKS_PER_NODE = "ranks_per_node"
"""Fact: of the ranks, on this rank's host."""

EFFICIENCY = "scaling_efficiency"
"""Derived of the runs, at so many ``workers``; where the call of the fixture has a name, that stands before it."""
