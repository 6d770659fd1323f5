"""What a scaling test's training records of its rate: names that ranks write and tables read."""

from __future__ import annotations

COMMUNICATION = ("on", "off")
"""Whether the ranks send gradients: without it, a step takes what it computes. The first is the default."""

RATE = "samples_per_second"
RATE_UNCERTAINTY = f"{RATE}_uncertainty"
RATE_JITTER = f"{RATE}_jitter"

RATE_OF = "loop"
"""Fact of the rate: the loop that was timed."""
RATE_SAMPLES = "samples"
"""Fact: of one rank in an iteration."""
RATE_COMMUNICATION = "communication"
"""Fact: one of :data:`COMMUNICATION`."""
