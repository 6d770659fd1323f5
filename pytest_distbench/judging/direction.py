"""Direction: whether what is called better fits the unit and the name of a number. Pure, no I/O.

A time that is recorded as ``better="higher"`` turns every slowdown into an improvement, and no run ever says so.
"""

from __future__ import annotations

import re

from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.units import is_duration, is_rate

_LOWER = frozenset({"time", "latency", "duration", "delay", "stall", "loss", "error", "perplexity", "memory"})
_HIGHER = frozenset({
    "throughput", "bandwidth", "accuracy", "efficiency", "speedup", "goodput", "busbw", "algbw", "mfu", "tps", "sps",
})  # fmt: skip
_AFTER_NOUN = re.compile(r"_(?:to|per|at|of|in|on|by|with|over)_.*")
_WORD = re.compile(r"[a-z]+")


def why_doubtful(name: str, unit: str, better: Better) -> str:
    """Why the direction is asked about, in a clause; empty where nothing speaks against it.

    Args:
        name: of the metric; its noun counts, the last word before ``_to_`` or ``_per_``.
        unit: as recorded.
        better: of a noisy kind; of others there is no direction.
    """
    sign = METRIC_KINDS[better].sign
    if not sign:
        return ""
    if sign < 0 and is_duration(unit):
        return f"it is a time ({unit}), and a longer one would be called an improvement"
    if sign > 0 and is_rate(unit):
        return f"it is a rate ({unit}), and a lower one would be called an improvement"
    words = _WORD.findall(_AFTER_NOUN.sub("", name.lower()))
    noun = words[-1] if words else ""
    if sign < 0 and noun in _LOWER:
        return f"{'an' if noun[0] in 'aeo' else 'a'} {noun} that rises would be called an improvement"
    if sign > 0 and noun in _HIGHER:
        return f"{'an' if noun[0] in 'aeo' else 'a'} {noun} that falls would be called an improvement"
    return ""
