"""Judgement: a verdict on one metric, whatever rule it comes from; which is the worst, and which is certain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.records.kinds import METRIC_KINDS, VerdictName
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.quantiles import median
from pytest_distbench.records.record import replace
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
        """Decide it."""
        now, then = median(self.current), median(self.reference)
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


def certain_failure(judgements: Sequence[Judgement]) -> str:
    """The metric that fails the case for certain, and how; empty: none does."""
    failed = (j.verdict for j in judgements if j.verdict.is_failure and not j.is_open)
    first = next((v for v in failed if v.kind in ("lost", "changed") or not v.is_noisy), None)
    return "" if first is None else f"{first.metric} {_WORDS.get(first.kind, first.kind)}"


NOT_JUDGED = "not judged: no more launches were made, as the case is red for certain"


def close(judgement: Judgement, reason: str) -> Judgement:
    """An open judgement as it stays: not judged, as the case is red without it. What is exact stays as it was seen."""
    if not judgement.verdict.is_noisy:
        return judgement._replace(is_open=False)
    told = f"{NOT_JUDGED} ({reason})"
    return Judgement(replace(judgement.verdict, kind="inconclusive", reason=told), is_open=False)


_WORDS = {"beyond": "is beyond a bound", "lost": "is measured no more", "changed": "changed"}


def severity(verdict: Verdict) -> float:
    """How far the metric moved, as a logarithm, whichever way is worse; infinite where a ratio does not say it."""
    if verdict.ratio is None or verdict.ratio <= 0:
        return math.inf
    return abs(math.log(verdict.ratio))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one to name first: what is beyond a bound, or a training's curve, the earliest, else what moved most."""
    return max(verdicts, key=lambda v: (v.kind == "beyond", METRIC_KINDS[v.better].rule == "curve", severity(v)))
