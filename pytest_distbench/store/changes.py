"""What differs between two versions of a stored entry. Pure, no I/O; new fields of an entry need no change here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.fingerprint import Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.quantiles import median
from pytest_distbench.records.record import Record

_LONGEST_VALUE = 60


class MetricChange(Record, frozen=True, kw_only=True):
    """Old and new values of one metric."""

    metric: str
    unit: str
    better: Better
    old: float | None
    """Median over launches; None where there was none."""
    new: float | None
    old_launches: int
    new_launches: int

    @property
    def ratio(self) -> float | None:
        """New / old; None where there is none."""
        return self.new / self.old if self.new is not None and self.old else None

    @property
    def worse_by(self) -> float:
        """How much worse, as a logarithm: negative is better. Infinite where a ratio does not say it."""
        if self.old == self.new:
            return 0.0
        if METRIC_KINDS[self.better].rule == "exact" or self.ratio is None or self.ratio <= 0:
            return math.inf
        return math.log(self.ratio) * (METRIC_KINDS[self.better].sign or 1)


class EntryChange(Record, frozen=True, kw_only=True):
    """One entry that was added, removed or changed."""

    name: EntryName
    kind: Literal["new", "removed", "changed"]
    metrics: list[MetricChange]
    """Those whose launches differ; of exact numbers, those whose values do."""
    notes: list[str]
    """Every other field that differs: ``software.torch 2.12.0 -> 2.13.0``."""


def entry_change(name: EntryName, old: BaselineEntry | None, new: BaselineEntry | None) -> EntryChange | None:
    """The change from ``old`` to ``new``, where None is no entry; None if they are equal."""
    if old == new:
        return None
    before = old.metrics if old is not None else {}
    after = new.metrics if new is not None else {}
    return EntryChange(
        name=name,
        kind="new" if old is None else "removed" if new is None else "changed",
        metrics=[
            _metric_change(key, before.get(key), after.get(key))
            for key in sorted({*before, *after})
            if _values(before.get(key)) != _values(after.get(key))
        ],
        notes=list(_notes(old, new)) if old is not None and new is not None else [],
    )


def _metric_change(key: str, old: BaselineMetric | None, new: BaselineMetric | None) -> MetricChange:
    described = new or old
    assert described is not None
    return MetricChange(
        metric=key,
        unit=described.unit,
        better=described.better,
        old=median(_launches(old)),
        new=median(_launches(new)),
        old_launches=len(_launches(old)),
        new_launches=len(_launches(new)),
    )


def _launches(metric: BaselineMetric | None) -> list[float | None]:
    return metric.launches if metric is not None else []


def _values(metric: BaselineMetric | None) -> object:
    """What must be equal: of exact numbers it does not matter how often they were seen."""
    return (
        set(_launches(metric))
        if metric is not None and METRIC_KINDS[metric.better].rule == "exact"
        else _launches(metric)
    )


def _notes(old: BaselineEntry, new: BaselineEntry) -> Iterator[str]:
    for field in BaselineEntry.__struct_fields__:
        if field != "metrics":
            yield from _difference(field, getattr(old, field), getattr(new, field))
    for key in sorted({*old.metrics} & {*new.metrics}):
        for field in BaselineMetric.__struct_fields__:
            if field != "launches":
                before, after = getattr(old.metrics[key], field), getattr(new.metrics[key], field)
                yield from _difference(f"{key}.{field}", before, after)


def _difference(field: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _difference(f"{field}.{key}", old.get(key), new.get(key))
    elif isinstance(old, Fingerprint) and isinstance(new, Fingerprint) and (told := differences(old, new)):
        yield from (f"{field}: {line}" for line in told)
    else:
        yield f"{field} {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    if value in (None, ""):
        return "none"
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
