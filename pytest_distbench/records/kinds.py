"""The kinds of metrics and of verdicts, and what follows from each."""

from __future__ import annotations

from typing import Literal

Better = Literal["higher", "lower", "exact", "info", "curve", "same", "steps", "floor"]


Reduce = Literal["max", "min", "mean", "sum", "rank0", "all"]


VerdictKind = Literal[
    "regressed", "changed", "improved", "unchanged", "drifted", "inconclusive", "incomparable", "missing"
]


CONVERGENCE: tuple[Better, ...] = ("curve", "same", "steps", "floor")
"""Numbers of a seeded training: repeated exactly while software and arithmetic are the baseline's, else judged over
seeds (see ``convergence``)."""
