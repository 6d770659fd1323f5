"""From what each rank recorded to one measurement per metric: reduction over ranks, element by element.

It goes in two steps, on each host and over hosts, so that what travels is as much for many ranks as for one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.environment import Load
from pytest_distbench.records.iteration import Fingerprint, RankFingerprint, rank_ranges
from pytest_distbench.records.kinds import FAST_SIDE, METRIC_KINDS
from pytest_distbench.records.launch import CommonPrint, Entered, HostReport, LaunchRecord, RankReport
from pytest_distbench.records.metric import (
    LARGEST_NUMBER,
    PEAK_MEMORY,
    PHASE,
    Observation,
    Sample,
    Scalar,
    Spread,
    metric_key,
)
from pytest_distbench.records.record import replace
from pytest_distbench.records.summaries import FEWEST_OF_SERIES, distribution, nearest_rank, quantile

_Part = TypeVar("_Part")


def of_rank(rank: int, observation: Observation) -> Observation:
    """What one rank recorded, to be reduced with that of others; where it lies in a loop is told in the loops."""
    is_compared = observation.is_series and observation.reduce == "max"
    slowest = [rank] * len(observation.values) if is_compared else []
    return replace(observation, place=None, ranks=[rank], slowest=slowest)


def recorded(reports: Iterable[RankReport]) -> list[Observation]:
    return [of_rank(report.rank, observation) for report in reports for observation in report.observations]


def reduce_partials(found: Iterable[Observation]) -> list[Observation]:
    """Reduce over ranks those of one key that are the same metric, in the order they were first recorded."""
    by_key: dict[str, list[list[Observation]]] = {}
    for part in sorted(found, key=lambda part: part.ranks[0]):
        same = by_key.setdefault(metric_key(part.name, part.at), [])
        group = next((group for group in same if _is_alike(group[0], part)), None)
        if group is None:
            same.append([part])
        else:
            group.append(part)
    return [_reduce(group) for same in by_key.values() for group in same]


def merge(found: Iterable[Observation]) -> list[Sample]:
    """Raises :class:`RecordingError` where ranks do not agree about a metric."""
    by_key: dict[str, list[Observation]] = {}
    for part in reduce_partials(found):
        by_key.setdefault(metric_key(part.name, part.at), []).append(part)
    for key, parts in by_key.items():
        _expect_agreement(key, parts)
    return [_measure(part) for [part] in by_key.values()]


def peak_memory(bytes_of: Mapping[int, int | None]) -> list[Sample]:
    """Peak memory as a metric, of the rank that needed most; none where one of them does not know."""
    known = {rank: used for rank, used in bytes_of.items() if used is not None}
    if not known or len(known) < len(bytes_of):
        return []
    rank = max(known, key=known.__getitem__)
    if len(known) == 1:
        return [_memory(known[rank], {})]
    return [replace(_memory(known[rank], {"rank": rank}), values=[known[rank] for rank in sorted(known)])]


def of_largest_process(num_bytes: int) -> list[Sample]:
    """Peak memory as a metric where processes are no ranks of ours; none where it is not known, which is 0."""
    return [_memory(num_bytes, {"of": "its largest process"})] if num_bytes else []


def largest(reports: Iterable[RankReport]) -> int:
    """Bytes of the rank that needed most; 0 where none knows."""
    return max((report.peak_memory_bytes or 0 for report in reports), default=0)


def _memory(num_bytes: int, facts: dict[str, Scalar]) -> Sample:
    return Sample(name=PEAK_MEMORY, unit="B", better="memory", value=num_bytes, facts=facts)


def with_load(record: LaunchRecord, load: Load | None) -> LaunchRecord:
    """The record of a launch with what other processes did to it meanwhile, as far as that is known."""
    if load is None:
        return record
    wanted, crowding = load.foreign_wanted, load.crowding
    return replace(record, foreign_cores=load.foreign_cores, foreign_wanted=wanted, crowding=crowding)


def merge_fingerprints(
    of_hosts: Iterable[Mapping[str, Sequence[CommonPrint]]], *, world_size: int, stands_for: int | None = None
) -> dict[str, Fingerprint]:
    """The ranks' fingerprints by key, equal parts of them told once.

    Args:
        stands_for: the rank that the only process stands for; None: each stands for itself.
    """
    by_key: dict[str, list[CommonPrint]] = {}
    for prints in of_hosts:
        for key, found in prints.items():
            by_key.setdefault(key, []).extend(found)
    return {
        key: _merge_prints(sorted(prints, key=lambda common: common.ranks[0]), world_size, stands_for)
        for key, prints in by_key.items()
    }


def common_prints(reports: Sequence[RankReport]) -> dict[str, list[CommonPrint]]:
    """The ranks' fingerprints by key, equal ones of them once, without their stamps."""
    found: dict[str, list[tuple[RankFingerprint, list[int]]]] = {}
    for report in reports:
        for key, stamped in report.fingerprints.items():
            mine = replace(stamped, entered=[], began=0.0)
            same = found.setdefault(key, [])
            who = next((ranks for other, ranks in same if other == mine), None)
            if who is None:
                same.append((mine, [report.rank]))
            else:
                who.append(report.rank)
    return {
        key: [CommonPrint(ranks=ranks, fingerprint=fingerprint) for fingerprint, ranks in same]
        for key, same in found.items()
    }


def _merge_prints(prints: Sequence[CommonPrint], world_size: int, stands_for: int | None) -> Fingerprint:
    def by_ranks(part: Callable[[RankFingerprint], _Part | None]) -> dict[str, _Part]:
        same: list[tuple[_Part, list[int]]] = []
        for common in prints:
            mine = part(common.fingerprint)
            who = next((ranks for other, ranks in same if other == mine), None)
            if who is not None:
                who += common.ranks
            elif mine is not None:
                same.append((mine, [*common.ranks]))
        if stands_for is not None:
            return {str(stands_for): mine for mine, _ in same}
        return {rank_ranges(sorted(who), world_size): mine for mine, who in same}

    if missing := next((common.fingerprint.missing for common in prints if common.fingerprint.missing), ""):
        return Fingerprint(missing=missing)
    facts = sorted({name for c in prints for name, value in c.fingerprint.facts.items() if value})
    totals = sorted({name for c in prints for name, value in c.fingerprint.totals.items() if value})
    return Fingerprint(
        collectives=by_ranks(lambda p: p.collectives),
        groups=by_ranks(lambda p: p.groups or None),
        facts={name: by_ranks(functools.partial(_fact, name)) for name in facts},
        totals={name: sum(c.fingerprint.totals.get(name, 0) * len(c.ranks) for c in prints) for name in totals},
        beyond=by_ranks(lambda p: p.beyond),
        course=by_ranks(lambda p: p.course),
        is_full=all(c.fingerprint.is_full for c in prints),
    )


def _fact(name: str, fingerprint: RankFingerprint) -> int:
    return fingerprint.facts.get(name, 0)


def entered_on(reports: Sequence[RankReport], *, ahead_s: float) -> dict[str, Entered]:
    """When the ranks of a host entered the same collectives, by the keys of their fingerprints.

    Args:
        reports: of all ranks of the host, ascending.
        ahead_s: of CLOCK_REALTIME there, which their stamps are of, before CLOCK_MONOTONIC.
    """
    found = {}
    for key in reports[0].fingerprints if reports else ():
        prints = [report.fingerprints.get(key) for report in reports]
        stamps = [[p.began - ahead_s + at for at in p.entered] for p in prints if p is not None and p.entered]
        if len(stamps) < len(reports) or len({len(each) for each in stamps}) > 1:
            continue
        firsts = [min(column) for column in zip(*stamps, strict=True)]
        late = [[at - first for at, first in zip(each, firsts, strict=True)] for each in stamps]
        latest = [max(range(len(each)), key=each.__getitem__) for each in late]
        found[key] = Entered(firsts=firsts, latest=[(i, each[i]) for i, each in zip(latest, late, strict=True)])
    return found


def late_s(hosts: Sequence[HostReport], *, doubt_s: float) -> dict[str, list[float]]:
    """How long after the first of all each rank entered the collective that it came latest to, by key and rank.

    Only where all entered equally many. A rank that came latest to another collective than others of its host, whose
    host came latest to a third, is told less than that: a host keeps one of each rank.

    Args:
        hosts: with the stamps of one clock.
        doubt_s: how far two moments of different hosts may be apart that are told as one: who is late by less is not
            known.
    """
    found = {}
    for key in hosts[0].entered if hosts else ():
        each = [host.entered[key] for host in hosts if key in host.entered]
        if len(each) < len(hosts) or len({len(e.firsts) for e in each}) > 1 or sum(len(e.latest) for e in each) < 2:
            continue
        firsts = [min(column) for column in zip(*(e.firsts for e in each), strict=True)]
        late = {
            report.rank: round(max(0.0, *own, own[i] + after), 7)
            for host, e in zip(hosts, each, strict=True)
            for own in [[at - first for at, first in zip(e.firsts, firsts, strict=True)]]
            for report, (i, after) in zip(host.ranks, e.latest, strict=True)
        }
        if max(late.values()) > doubt_s:
            found[key] = [late[rank] for rank in sorted(late)]
    return found


def _is_alike(one: Observation, other: Observation) -> bool:
    """Whether they are one metric, with as many values; with the same where all ranks have to have those."""
    return _shape(one) == _shape(other) and (one.reduce != "all" or one.values == other.values)


_MEANING: dict[str, Callable[[Observation], object]] = {
    "unit": lambda part: part.unit,
    "direction": lambda part: part.better,
    "reduction": lambda part: part.reduce,
    "shape": lambda part: "a series" if part.is_series else "a number",
    "identity": lambda part: part.identity,
    "bounds": lambda part: [f"{bound.side} {bound.value:g}" for bound in part.bounds],
}
"""What ranks have to agree about, by what it is called."""


def _shape(part: Observation) -> tuple[object, ...]:
    return len(part.values), part.bounds, *(of(part) for of in _MEANING.values())


def _expect_agreement(key: str, parts: Sequence[Observation]) -> None:
    if len(parts) == 1:
        return
    for what, of in _MEANING.items():
        if len(found := _by_ranks(parts, of)) > 1:
            raise RecordingError(f"{key!r}: ranks disagree about its {what} ({_tell(found)})")
    if len(found := _by_ranks(parts, lambda part: len(part.values))) > 1:
        raise RecordingError(f"{key!r}: ranks did not record equally many values ({_tell(found)})")
    if len(found := _by_ranks(parts, lambda part: [bound.where for bound in part.bounds])) > 1:
        raise RecordingError(f"{key!r}: ranks were given its bounds in different places ({_tell(found)})")
    found = _by_ranks(parts, lambda part: _shorten(part.values), str)
    raise RecordingError(f"{key!r}: ranks disagree on a value that must be equal ({_tell(found)})")


def _by_ranks(
    parts: Sequence[Observation], of: Callable[[Observation], object], spell: Callable[[object], str] = show
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in parts:
        found.setdefault(spell(of(part)), []).extend(part.ranks)
    return found


def _tell(found: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}: {what}" for what, ranks in found.items())


def _reduce(group: Sequence[Observation]) -> Observation:
    first, *others = group
    if not others:
        return first
    columns = [*zip(*(part.values for part in group), strict=True)]
    slowest: list[int] = []
    if first.slowest:  # of equal ones the first rank, on whichever host it lives
        by_part = [[(value, -rank) for value, rank in zip(part.values, part.slowest, strict=True)] for part in group]
        slowest = [-max(column)[1] for column in zip(*by_part, strict=True)]
    is_hiding = first.reduce == "mean" and METRIC_KINDS[first.better].is_of_training  # errors that cancel
    return replace(
        first,
        values=[_combine(column, first) for column in columns],
        slowest=slowest,
        companions=_sum_companions(group),
        taken_from=[],
        squares=_sum_squares(group) if is_hiding else [],
        ranks=sorted(rank for part in group for rank in part.ranks),
    )


def _sum_squares(group: Sequence[Observation]) -> list[float]:
    """Of each value the sum over ranks of the squared deviation from their mean (Chan, Golub and LeVeque 1983)."""
    found = []
    for i in range(len(group[0].values)):
        count, mean, squares = 0, 0.0, 0.0
        for part in group:
            n = len(part.ranks)
            apart = part.values[i] / n - mean
            squares += (part.squares[i] if part.squares else 0.0) + apart * apart * count * n / (count + n)
            mean += apart * n / (count + n)
            count += n
        found.append(min(squares, LARGEST_NUMBER))
    return found


def _sum_companions(group: Sequence[Observation]) -> dict[str, list[float]]:
    """Summed over ranks: their noise is independent, so the sum is quieter than the largest.

    One that some ranks have not, or not of each iteration, is left out.
    """
    found = {}
    for name, own in group[0].companions.items():
        series = [part.companions.get(name, []) for part in group]
        if all(len(each) == len(own) for each in series):
            found[name] = [sum(column) for column in zip(*series, strict=True)]
    return found


def _measure(part: Observation) -> Sample:
    values = [value / len(part.ranks) for value in part.values] if part.reduce == "mean" else part.values
    kind = METRIC_KINDS[part.better]
    kept = part.taken_from
    if part.is_series:
        kept = values if kind.keeps_series else distribution(values)
    return Sample(
        name=part.name,
        unit=part.unit,
        better=part.better,
        value=_launch_value(values, part),
        at=part.at,
        identity=part.identity,
        facts=part.facts,
        values=kept,
        beside=part.beside,
        spread=_spread(values, kept, part) if part.is_series or part.squares else None,
        companions={
            name: quantile(sums, FAST_SIDE) if name.endswith("_s") else statistics.fmean(sums)
            for name, sums in part.companions.items()
            if sums
        },
        ranks=len(part.ranks),
        reduce=None if part.reduce == kind.reduce else part.reduce,
        bounds=part.bounds,
    )


def _combine(column: tuple[float, ...], observation: Observation) -> float:
    match observation.reduce:
        case "max":
            return max(column)
        case "min":
            return min(column)
        case "mean" | "sum":
            return sum(column) if all(isinstance(value, int) for value in column) else math.fsum(column)
        case "rank0" | "all":
            return column[0]


def _launch_value(values: list[float], observation: Observation) -> float | None:
    if not values:
        return None
    if not observation.is_series:
        return values[0]
    if observation.name.startswith(PHASE):  # seconds: an iteration that does not enter the phase says nothing of it
        return METRIC_KINDS["lower"].launch_value([v for v in values if v > 0] or values)
    return METRIC_KINDS[observation.better].launch_value(values)


def _spread(values: list[float], kept: Sequence[float], part: Observation) -> Spread:
    over_ranks = [math.sqrt(squares / len(part.ranks)) for squares in part.squares]
    over_ranks = over_ranks if any(over_ranks) else over_ranks[:1]
    if not part.is_series:
        return Spread(over_ranks=over_ranks)
    slowest: int | None = None
    share = 0.0
    if len(part.ranks) > 1 and part.slowest:
        slowest, times = Counter(part.slowest).most_common(1)[0]
        share = times / len(values)
    is_noisy = METRIC_KINDS[part.better].rule == "noisy"
    return Spread(
        n=len(values),
        minimum=min(values),
        p25=quantile(values, 0.25),
        median=statistics.median(values),
        p95=nearest_rank(values, 0.95),
        p99=nearest_rank(values, 0.99),
        mean=statistics.fmean(values),
        stdev=statistics.stdev(values) if len(values) > 1 else 0.0,
        geometric_mean=statistics.geometric_mean(kept)
        if is_noisy and len(values) >= FEWEST_OF_SERIES and min(kept) > 0
        else None,
        slowest_rank=slowest,
        slowest_share=share,
        over_ranks=over_ranks,
    )


def _shorten(values: list[float]) -> str:
    text = ", ".join(f"{v:g}" for v in values[:3])
    return text + (", ..." if len(values) > 3 else "") if values else "none"
