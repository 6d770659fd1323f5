"""From what each rank recorded to one measurement per metric: reduction over ranks, element by element."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.fingerprint import Fingerprint, RankFingerprint, rank_ranges
from pytest_distbench.records.kinds import FAST_SIDE, METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.load import Load
from pytest_distbench.records.metric import PEAK_MEMORY, PHASE, Measurement, Observation, Scalar, Summary
from pytest_distbench.records.quantiles import distribution, nearest_rank, quantile
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace

_Part = TypeVar("_Part")


def merge(reports: Sequence[RankReport]) -> list[Measurement]:
    """Reduce the observations of all ranks of a launch, in the order they were first recorded."""
    by_key: dict[str, list[tuple[int, Observation]]] = {}
    for report in sorted(reports, key=lambda r: r.rank):
        for observation in report.observations:
            key = Measurement(name=observation.name, unit="", better="info", value=None, at=observation.at).key
            by_key.setdefault(key, []).append((report.rank, observation))
    return [_reduce(key, seen) for key, seen in by_key.items()]


def peak_memory(bytes_of: Mapping[int, int | None]) -> list[Measurement]:
    """Peak memory as a metric, of the rank that needed most; none where one of them does not know."""
    known = {rank: used for rank, used in bytes_of.items() if used is not None}
    if not known or len(known) < len(bytes_of):
        return []
    rank = max(known, key=known.__getitem__)
    if len(known) == 1:
        return [_memory(known[rank], {})]
    return [replace(_memory(known[rank], {"rank": rank}), series=[known[rank] for rank in sorted(known)])]


def of_largest_process(num_bytes: int) -> list[Measurement]:
    """Peak memory as a metric where processes are no ranks of ours; none where it is not known, which is 0."""
    return [_memory(num_bytes, {"of": "its largest process"})] if num_bytes else []


def largest(reports: Iterable[RankReport]) -> int:
    """Bytes of the rank that needed most; 0 where none knows."""
    return max((report.peak_memory_bytes or 0 for report in reports), default=0)


def _memory(num_bytes: int, facts: dict[str, Scalar]) -> Measurement:
    return Measurement(name=PEAK_MEMORY, unit="B", better="memory", value=num_bytes, facts=facts)


def with_load(record: LaunchRecord, load: Load | None) -> LaunchRecord:
    """The record of a launch with what other processes did to it meanwhile, as far as that is known."""
    if load is None:
        return record
    wanted, crowding = load.foreign_wanted, load.crowding
    return replace(record, foreign_cores=load.foreign_cores, foreign_wanted=wanted, crowding=crowding)


def merge_fingerprints(reports: Sequence[RankReport], *, stands_for: int | None = None) -> dict[str, Fingerprint]:
    """The ranks' fingerprints by key, equal parts of them told once.

    The only report may be of one rank that stands for all.
    """
    ranks = sorted(reports, key=lambda r: r.rank)
    found = {}
    for key in dict.fromkeys(key for r in ranks for key in r.fingerprints):
        prints = {r.rank: r.fingerprints[key] for r in ranks if key in r.fingerprints}
        missing = next((p.missing for p in prints.values() if p.missing), "")
        found[key] = Fingerprint(missing=missing) if missing else _merge_prints(prints, len(reports), stands_for)
    return found


def _merge_prints(prints: Mapping[int, RankFingerprint], world_size: int, stands_for: int | None) -> Fingerprint:
    def by_ranks(part: Callable[[RankFingerprint], _Part | None]) -> dict[str, _Part]:
        same: list[tuple[_Part, list[int]]] = []
        for rank, fingerprint in prints.items():
            mine = part(fingerprint)
            who = next((ranks for other, ranks in same if other == mine), None)
            if who is not None:
                who.append(rank)
            elif mine is not None:
                same.append((mine, [rank]))
        if stands_for is not None:
            return {str(stands_for): mine for mine, _ in same}
        return {rank_ranges(who, world_size): mine for mine, who in same}

    has_stepped = any(p.parameter_bytes for p in prints.values())  # then a rank without an optimizer is named, with 0
    return Fingerprint(
        collectives=by_ranks(lambda p: p.collectives),
        parameters=sum(p.parameters for p in prints.values()),
        optimizer_steps=sum(p.optimizer_steps for p in prints.values()),
        groups=by_ranks(lambda p: p.groups or None),
        parameter_bytes=by_ranks(lambda p: p.parameter_bytes if has_stepped else None),
        optimizer_bytes=by_ranks(lambda p: p.optimizer_bytes or None),
        beyond=by_ranks(lambda p: p.beyond),
        course=by_ranks(lambda p: p.course),
        is_full=all(p.is_full for p in prints.values()),
    )


def late_s(reports: Sequence[RankReport]) -> dict[str, list[float]]:
    """How long after the first rank each entered the same collectives, mean seconds, by key and rank.

    Only for ranks whose clock is one, and where all entered equally many.
    """
    ranks = sorted(reports, key=lambda r: r.rank)
    found = {}
    for key in ranks[0].fingerprints if ranks else ():
        prints = [r.fingerprints.get(key) for r in ranks]
        stamps = [[p.began + at for at in p.entered] for p in prints if p is not None and p.entered]
        if len(stamps) < max(2, len(ranks)) or len({len(s) for s in stamps}) > 1:
            continue
        firsts = [min(column) for column in zip(*stamps, strict=True)]
        late = [statistics.fmean(at - first for at, first in zip(s, firsts, strict=True)) for s in stamps]
        found[key] = [round(seconds, 7) for seconds in late]
    return found


def _reduce(key: str, seen: list[tuple[int, Observation]]) -> Measurement:
    first = seen[0][1]
    if any(
        (o.unit, o.better, o.reduce, o.is_series, o.identity, o.bounds)
        != (first.unit, first.better, first.reduce, first.is_series, first.identity, first.bounds)
        for _, o in seen
    ):
        raise RecordingError(f"{key!r}: ranks disagree about its unit, direction, reduction, shape, identity or bounds")
    lengths = {len(o.values) for _, o in seen}
    if len(lengths) > 1:
        raise RecordingError(f"{key!r}: ranks recorded {sorted(lengths)} values; all must record equally many")
    recorded = seen
    if first.reduce == "rank0":
        seen = [pair for pair in seen if pair[0] == 0] or seen[:1]
    rows = [o.values for _, o in seen]
    if first.reduce == "all" and any(row != rows[0] for row in rows):
        found = ", ".join(f"rank {rank}: {_shorten(o.values)}" for rank, o in seen)
        raise RecordingError(f"{key!r}: ranks disagree on a value that must be equal ({found})")
    values = [_combine(column, first) for column in zip(*rows, strict=True)]
    summary = _summarise(values, rows, [rank for rank, _ in seen], first) if first.is_series else None
    is_kept = METRIC_KINDS[first.better].keeps_series
    return Measurement(
        name=first.name,
        unit=first.unit,
        better=first.better,
        value=_launch_value(values, first),
        at=first.at,
        identity=first.identity,
        facts=first.facts,
        series=values if first.is_series and is_kept else [],
        beside=first.beside,
        summary=summary,
        distribution=distribution(values) if first.is_series and not is_kept else [],
        companions=_companions([o for _, o in seen]),
        ranks=len(recorded),
        reduce=None if first.reduce == METRIC_KINDS[first.better].reduce else first.reduce,
        bounds=first.bounds,
    )


def _companions(observations: Sequence[Observation]) -> dict[str, float]:
    """Summed over ranks: their noise is independent, so the sum is quieter than the largest."""
    found = {}
    for name in observations[0].companions:
        sums = [sum(column) for column in zip(*(o.companions.get(name, []) for o in observations), strict=True)]
        if sums:
            found[name] = quantile(sums, FAST_SIDE) if name.endswith("_s") else statistics.fmean(sums)
    return found


def _combine(column: tuple[float, ...], observation: Observation) -> float:
    match observation.reduce:
        case "max":
            return max(column)
        case "min":
            return min(column)
        case "mean":
            return statistics.fmean(column)
        case "sum":
            return sum(column)
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


def _summarise(values: list[float], rows: list[list[float]], ranks: list[int], observation: Observation) -> Summary:
    slowest: int | None = None
    share = 0.0
    over_ranks: float | None = None
    if len(rows) > 1 and observation.reduce == "max":
        winners = Counter(ranks[max(range(len(rows)), key=column.__getitem__)] for column in zip(*rows, strict=True))
        slowest, times = winners.most_common(1)[0]
        share = times / len(values)
        over_ranks = statistics.fmean(statistics.fmean(row) for row in rows)
    return Summary(
        n=len(values),
        minimum=min(values),
        p25=quantile(values, 0.25),
        median=statistics.median(values),
        p95=nearest_rank(values, 0.95),
        p99=nearest_rank(values, 0.99),
        mean=statistics.fmean(values),
        stdev=statistics.stdev(values) if len(values) > 1 else 0.0,
        slowest_rank=slowest,
        slowest_share=share,
        mean_over_ranks=over_ranks,
    )


def _shorten(values: list[float]) -> str:
    text = ", ".join(f"{v:g}" for v in values[:3])
    return text + (", ..." if len(values) > 3 else "") if values else "none"
