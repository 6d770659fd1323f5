"""How large a slowdown is planted, and in which clocks it can be seen. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pytest_distbench.judging.screening import is_clock
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.verdict import Verdict

BEYOND = 4 / 3
"""What is planted is so many times the tolerance: one that is exactly as large is no regression, nor far from one."""

LEAST_SHARE = 0.05
"""Of a case that tolerates next to nothing."""


def clocks_of(terms: Terms, launch: LaunchRecord, *, left_out: Collection[str] = ()) -> list[str]:
    """Keys of the clocks that the test wants judged, but for metrics of some names."""
    return [
        m.key
        for m in launch.measurements
        if is_clock(m, m.unit) and m.is_judged and terms.wants(m.name) and m.name not in left_out
    ]


def share_beyond(tolerances: Iterable[float]) -> float:
    """The share of its own duration by which what is timed is delayed: beyond all of these tolerances."""
    return max(LEAST_SHARE, BEYOND * max(tolerances))


def spoken_against(verdicts: Sequence[Verdict], clocks: Collection[str]) -> Verdict | None:
    """What fails the case whatever the clocks say, so that nothing can be learned of them."""
    return next((v for v in verdicts if v.is_failure and v.metric not in clocks), None)
