"""A positive control: a slowdown that was planted in a case, and what the run found of it."""

from __future__ import annotations

from typing import Literal

from pytest_distbench.records.record import Record
from pytest_distbench.records.verdict import Verdict

Step = Literal["", "stored", "screening", "turns", "bound"]
"""What decided: nothing; launches against the baseline alone; few of them, which raise suspicion or do not; launches in
turns, delayed and not; a bound of the number."""


class Control(Record, frozen=True, kw_only=True):
    """A slowdown that was planted in a case, and what the run found of it."""

    share: float = 0.0
    """What was timed took so much longer, as a fraction of itself."""
    is_chosen: bool = False
    """The user chose the share; else it follows from the tolerance."""
    step: Step = ""
    """That decided."""
    verdicts: list[Verdict] = []
    """On the clocks, by the step that decided: against the baseline, or in turns against launches without delay."""
    has_baseline: bool = False
    """Without one nothing was screened."""
    launches: int = 0
    """That it took: those with the delay, and those beside them."""
    took_s: float = 0.0
    left_out: list[str] = []
    """Clocks that the delay cannot reach: a script of ranks has them of its own, and prints them."""
    why_alone: str = ""
    """Why nothing could be decided in turns; empty: it could."""
    why_not: str = ""
    """Why nothing could be tried at all; empty: it was."""

    @property
    def found(self) -> list[Verdict]:
        """The clocks in which the run would have told of it."""
        return [v for v in self.verdicts if is_found(v)]


def is_found(verdict: Verdict) -> bool:
    """Whether it would have failed its test."""
    return verdict.kind in ("regressed", "beyond")
