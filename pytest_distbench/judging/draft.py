"""Draft: what every verdict on one metric says, whatever rule it comes from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.records.kinds import VerdictName
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.verdict import Verdict


class Judgement(NamedTuple):
    """A verdict, and whether more launches could still change it."""

    verdict: Verdict
    is_open: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """A verdict that is not decided yet.

    Attributes:
        metric: name, unit, kind and point.
        current: its value in each launch of this run; None where a launch has none.
        reference: the same of what it is compared with.
    """

    metric: Measurement
    current: Sequence[float | None]
    reference: Sequence[float | None]

    def settle(
        self,
        kind: VerdictName,
        reason: str = "",
        *,
        ratio: float | None = None,
        limit: float | None = None,
        detectable: float | None = None,
        is_open: bool = False,
    ) -> Judgement:
        """Decide it.

        Args:
            kind: the answer.
            reason: why, in a clause.
            ratio: current over reference; None: that of the medians.
            limit: the largest change that is not called a regression, as a fraction.
            detectable: the smallest slowdown that is found, as a fraction.
            is_open: whether more launches could still change it.
        """
        now, then = _median(self.current), _median(self.reference)
        verdict = Verdict(
            metric=self.metric.key,
            kind=kind,
            unit=self.metric.unit,
            better=self.metric.better,
            current=now,
            baseline=then,
            ratio=ratio if ratio is not None else now / then if now is not None and then else None,
            limit=limit,
            detectable=detectable,
            launches=len(self.current),
            baseline_launches=len(self.reference),
            reason=reason,
            at=self.metric.at,
            facts={**self.metric.identity, **self.metric.facts},
        )
        return Judgement(verdict, is_open)


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
