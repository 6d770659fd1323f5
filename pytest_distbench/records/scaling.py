"""The words of a scaling experiment, which ranks, the fixture and the table share."""

from __future__ import annotations

COMMUNICATION = "communication"
"""Parameter of a run: ``on``, or ``off`` where each worker trains by itself."""
MODE = "scaling"
"""Parameter of a run: ``weak`` where the batch of a worker stays the same, ``strong`` where that of all does."""
MODES = ("weak", "strong")

LOCAL, TOGETHER, ALONE = "local", "together", "alone"
"""Names of its runs: one worker without communication, all with it, all without it."""

RATE = "samples_per_second"
"""Of all ranks together."""
EFFICIENCY = "scaling_efficiency"
"""Rate of n workers over n times that of one without communication."""
COMPUTATION = "computation_share"
"""Step without communication over step with it, which is the rate with it over the rate without it."""
SENT = {"collectives": "", "sent_bytes": "B"}
"""What a worker puts into a step, with its unit."""

WORKERS, OF = "workers", "of"
"""Axes of the point of a derived number: how many, and the name of the call where it has one."""
