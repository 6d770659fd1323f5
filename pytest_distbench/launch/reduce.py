"""Reduction over ranks, element by element, to one sample per metric, and to where loops spend their time.

Ranks are reduced on each host first, then over hosts, so that what is sent does not grow with the ranks.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records import kinds, metric
from pytest_distbench.records.environment import Load
from pytest_distbench.records.iteration import Breakdown, Fingerprint, named_ranks, rank_ranges
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import Entered, HostReport, LaunchRecord, RankReport
from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.metric import Observation, Sample, Scalar, Spread
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace

_Part = TypeVar("_Part")

_DIGITS = 9  # decimals of seconds: finer than any clock, and sums are right to a microsecond


_LARGEST_BYTES = 256 * 2**20


def read_left(path: Path, kind: type[_Part]) -> _Part | None:
    """The contents of a JSON file that a rank wrote, or None if it is missing or damaged, as after a crash."""
    try:
        with open_left(path) as file:
            return msgspec.json.decode(file.read(_LARGEST_BYTES), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_reports(plan: LaunchPlan, ranks: Sequence[int] | None = None) -> dict[int, RankReport]:
    """Complete reports by rank, of all processes or of some."""
    asked = range(plan.processes) if ranks is None else ranks
    found = [read_left(plan.files.report(rank), RankReport) for rank in asked]
    return {rank: report for rank, report in zip(asked, found, strict=True) if report and report.rank == rank}


def report_host(plan: LaunchPlan, ranks: Iterable[int] | None = None) -> HostReport:
    """The reports of these ranks, of whose host this is, reduced to one; ``ranks=None``: all ranks of the launch."""
    here = sorted(range(plan.processes) if ranks is None else ranks)
    return reduce_host(read_reports(plan, here), lived_here=len(here), are_all=len(here) == plan.processes)


def reduce_host(found: Mapping[int, RankReport], *, lived_here: int, are_all: bool) -> HostReport:
    """Reports of one host's ranks, reduced over them if all have passed.

    ``are_all``: no other host has ranks, so that one clock has all time stamps.
    """
    each = [
        HostReport(
            ranks=[replace(report, observations=[], fingerprints={}, entered={})],
            observations=[of_rank(rank, observation) for observation in report.observations],
            fingerprints=report.fingerprints,
            entered={key: (stamps, {rank: (0, 0.0)}) for key, stamps in report.entered.items() if stamps},
        )
        for rank, report in sorted(found.items())
    ]
    if len(each) < lived_here or any(report.outcome != "passed" for report in found.values()):
        return HostReport(ranks=[report for one in each for report in one.ranks])
    return join(each, is_one_host=are_all)


def join(reports: Sequence[HostReport], *, is_one_host: bool = False) -> HostReport:
    """Reports of several hosts, reduced over all ranks; each rank may be a host of its own.

    ``is_one_host``: all ranks are there, with time stamps of one clock, so that waits are known.
    """
    keys = dict.fromkeys(key for report in reports for key in report.fingerprints)
    return HostReport(
        ranks=sorted((rank for report in reports for rank in report.ranks), key=lambda rank: rank.rank),
        observations=reduce_partials((o for report in reports for o in report.observations), is_one_host=is_one_host),
        fingerprints={
            key: join_fingerprints([report.fingerprints[key] for report in reports if key in report.fingerprints])
            for key in keys
        },
        entered={
            key: _join_entered([report.entered[key] for report in reports])
            for key in (reports[0].entered if reports else ())
            if len({len(r.entered[key][0]) if key in r.entered else 0 for r in reports}) == 1
        },
    )


def of_rank(rank: int, observation: Observation) -> Observation:
    """A rank's observation with ``of_ranks`` and ``slowest`` filled for this rank, for :func:`reduce_partials`."""
    is_compared = observation.is_series and observation.reduce == "max"
    values = observation.values
    means = {"time_s": values} if values else {}
    if observation.host_s:
        means["host_s"] = observation.host_s
    return replace(
        observation,
        of_ranks={rank: {name: statistics.fmean(series) for name, series in means.items()}},
        slowest=[rank] * len(values) if is_compared else [],
    )


def recorded(reports: Iterable[RankReport]) -> list[Observation]:
    return [of_rank(report.rank, observation) for report in reports for observation in report.observations]


def reduce_partials(found: Iterable[Observation], *, is_one_host: bool = False) -> list[Observation]:
    """Reduce observations of equal key and shape over ranks, in order of recording."""
    by_key: dict[str, list[list[Observation]]] = {}
    for part in sorted(found, key=lambda part: min(part.of_ranks)):
        same = by_key.setdefault(part.key, [])
        group = next((group for group in same if _shape(group[0]) == _shape(part)), None)
        if group is None:
            same.append([part])
        else:
            group.append(part)
    return [_reduce(group, is_one_host=is_one_host) for same in by_key.values() for group in same]


def merge(found: Iterable[Observation]) -> list[Sample]:
    """Samples of all observations, reduced over ranks. Raises RecordingError if ranks disagree about a metric."""
    by_key: dict[str, list[Observation]] = {}
    for part in reduce_partials(found):
        by_key.setdefault(part.key, []).append(part)
    for key, parts in by_key.items():
        if len(parts) == 1:
            continue
        for what, of in _MEANING.items():
            if len(said := _by_ranks(parts, of)) > 1:
                raise RecordingError(f"{key!r}: ranks disagree about its {what} ({_ranks_text(said)})")
        if len(said := _by_ranks(parts, lambda part: len(part.values))) > 1:
            raise RecordingError(f"{key!r}: ranks did not record equally many values ({_ranks_text(said)})")
        if len(said := _by_ranks(parts, lambda part: [bound.where for bound in part.bounds])) > 1:
            raise RecordingError(f"{key!r}: ranks were given its bounds in different places ({_ranks_text(said)})")
        said = {}
        for part in parts:
            text = ", ".join([*(f"{value:g}" for value in part.values[:3]), *["..."] * (len(part.values) > 3)])
            said.setdefault(text or "none", []).extend(part.of_ranks)
        raise RecordingError(f"{key!r}: ranks disagree on a value that must be equal ({_ranks_text(said)})")
    return [_measure(part) for [part] in by_key.values()]


def breakdowns(launch: HostReport) -> dict[str, Breakdown]:
    """Seconds per rank in each phase of the loops that all ranks ran, by the key of the loop's metric.

    A rank that does not enter a phase spends 0 s there. A script as a whole is one iteration under the key of its wall
    time; its phases sum all of their times, at whatever points.
    """
    ranks = [report.rank for report in launch.ranks]
    parts: dict[str, dict[tuple[str, ...], list[Observation]]] = {}
    for one in launch.observations:
        if one.loop:
            parts.setdefault(one.loop, {}).setdefault(tuple(one.path), []).append(one)
    return {
        whole.key: Breakdown(
            times_s=_by_rank(ranks, [whole], "time_s"),
            parts=[
                Breakdown(
                    path=list(path),
                    times_s=_by_rank(ranks, seen, "time_s"),
                    waits_s=_by_rank(ranks, seen, "wait_s"),
                    late_s=_by_rank(ranks, seen, "late_s"),
                    hosts_s=_by_rank(ranks, seen, "host_s"),
                    is_apart=any(one.is_apart for one in seen),
                )
                for path, seen in parts[whole.key].items()
            ],
        )
        for whole in launch.observations
        if not whole.loop and whole.key in parts and all("time_s" in whole.of_ranks.get(rank, ()) for rank in ranks)
    }


def _by_rank(ranks: Sequence[int], seen: Sequence[Observation], name: str) -> list[float]:
    if not any(name in means for one in seen for means in one.of_ranks.values()):
        return []
    is_script = any(one.loop == metric.WALL_TIME for one in seen)
    times = [(one.of_ranks, len(one.values) if is_script else 1) for one in seen]
    return [round(sum(of.get(r, {}).get(name, 0.0) * count for of, count in times), _DIGITS) for r in ranks]


def peak_memory(bytes_of: Mapping[int, int | None], at: Mapping[str, Scalar] | None = None) -> list[Sample]:
    """Peak memory of the rank that needed most, as a metric at this point, or [] if it is unknown for any rank."""
    known = {rank: used for rank, used in bytes_of.items() if used is not None}
    if not known or len(known) < len(bytes_of):
        return []
    rank = max(known, key=known.__getitem__)
    is_alone = len(known) == 1
    whole = replace(_memory(known[rank], {} if is_alone else {"rank": rank}), at=dict(at or {}))
    return [whole if is_alone else replace(whole, values=[known[rank] for rank in sorted(known)])]


def of_largest_process(num_bytes: int) -> list[Sample]:
    """Peak memory in bytes as a metric of a command's processes, or [] if it is 0, unknown."""
    return [_memory(num_bytes, {"of": "its largest process"})] if num_bytes else []


def largest(reports: Iterable[RankReport]) -> int:
    """Peak memory of the rank that needed most, in bytes, or 0 if unknown."""
    return max((report.peak_memory_bytes or 0 for report in reports), default=0)


def _memory(num_bytes: int, facts: dict[str, Scalar]) -> Sample:
    return Sample(name=metric.PEAK_MEMORY, unit="B", better="memory", value=num_bytes, facts=facts)


def with_load(record: LaunchRecord, load: Load | None) -> LaunchRecord:
    """A launch's record with the CPU use of other processes during it, if known."""
    if load is None:
        return record
    return replace(record, foreign_cores=load.foreign_cores, foreign_wanted=load.foreign_wanted, crowding=load.crowding)


def of_launch(fingerprint: Fingerprint, world_size: int | None) -> Fingerprint:
    """A launch's fingerprint with equal ranks merged, and without facts that are 0 in all ranks."""
    facts = {name: by_ranks for name, by_ranks in fingerprint.facts.items() if any(by_ranks.values())}
    return join_fingerprints([replace(fingerprint, facts=facts)], world_size)


def join_fingerprints(found: Sequence[Fingerprint], world_size: int | None = None) -> Fingerprint:
    """The fingerprint of several ranks, with equal parts merged."""
    if missing := next((f.missing for f in found if f.missing), ""):
        return Fingerprint(missing=missing)
    return Fingerprint(
        collectives=_join_parts([f.collectives for f in found], world_size),
        groups=_join_parts([f.groups for f in found], world_size),
        facts={
            name: _join_parts([f.facts.get(name, {}) for f in found], world_size)
            for name in sorted({name for f in found for name in f.facts})
        },
        totals={
            name: sum(f.totals.get(name, 0) for f in found)
            for name in sorted({name for f in found for name in f.totals})
        },
        pickled_bytes=max((f.pickled_bytes for f in found), default=0),
        in_backward=_join_parts([f.in_backward for f in found], world_size),
        beyond=_join_parts([f.beyond for f in found], world_size),
        course=_join_parts([f.course for f in found], world_size),
        is_full=all(f.is_full for f in found),
    )


def _join_parts(parts: Iterable[Mapping[str, _Part]], world_size: int | None) -> dict[str, _Part]:
    same: list[tuple[_Part, list[int]]] = []
    for who, mine in (item for part in parts for item in part.items()):
        ranks = next((ranks for other, ranks in same if other == mine), None)
        if ranks is None:
            same.append((mine, named_ranks([who])))
        else:
            ranks += named_ranks([who])
    return {rank_ranges(ranks, world_size): mine for mine, ranks in sorted(same, key=lambda each: min(each[1]))}


def _join_entered(parts: Sequence[Entered]) -> Entered:
    firsts = [min(column) for column in zip(*(own_firsts for own_firsts, _ in parts), strict=True)]
    latest = {}
    for own_firsts, own_latest in parts:
        own = [(at - first, i) for i, (at, first) in enumerate(zip(own_firsts, firsts, strict=True))]
        for rank, (i, after) in own_latest.items():
            late_s, which = max([*own, (own[i][0] + after, i)], key=lambda each: each[0])
            latest[rank] = which, late_s
    return firsts, latest


def late_s(launch: HostReport, *, resolution_s: float) -> dict[str, list[float]]:
    """Seconds after the first rank at which each rank entered its latest collective, by key, in order of rank.

    Keys are left out if all moments differ by at most ``resolution_s``, the error of the hosts' clocks.
    """
    found = {
        key: [round(after, 7) for _, (_, after) in sorted(latest.items())]
        for key, (_, latest) in launch.entered.items()
        if len(latest) > 1
    }
    return {key: late for key, late in found.items() if max(late) > resolution_s}


_MEANING: dict[str, Callable[[Observation], object]] = {
    "unit": lambda part: part.unit,
    "direction": lambda part: part.better,
    "reduction": lambda part: part.reduce,
    "shape": lambda part: "a series" if part.is_series else "a number",
    "identity": lambda part: part.identity,
    "bounds": lambda part: [f"{bound.side} {bound.value:g}" for bound in part.bounds],
}
"""Name of a property of a metric -> function that reads it; observations of all ranks must have the same value."""


def _shape(part: Observation) -> tuple[object, ...]:
    values = part.values if part.reduce == "all" else len(part.values)
    return values, part.bounds, *(of(part) for of in _MEANING.values())


def _by_ranks(parts: Sequence[Observation], of: Callable[[Observation], object]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in parts:
        found.setdefault(show(of(part)), []).extend(part.of_ranks)
    return found


def _ranks_text(found: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}: {what}" for what, ranks in found.items())


def _reduce(group: Sequence[Observation], *, is_one_host: bool) -> Observation:
    first, *others = group
    of_ranks = {rank: means for part in group for rank, means in part.of_ranks.items()}
    if first.loop:
        if is_one_host:
            _add_waits(group, of_ranks)
        first = replace(first, began_at=[], host_s=[], is_apart=any(part.is_apart for part in group))
    if not others:
        return replace(first, of_ranks=of_ranks)
    columns = [*zip(*(part.values for part in group), strict=True)]
    slowest: list[int] = []
    if first.slowest:  # of equal ones the first rank, on whichever host it lives
        by_part = [[(value, -rank) for value, rank in zip(part.values, part.slowest, strict=True)] for part in group]
        slowest = [-max(column)[1] for column in zip(*by_part, strict=True)]
    signals = {}  # summed over ranks: their noise is independent, so the sum is quieter than the largest
    for name, own in first.secondary.items():
        series = [part.secondary.get(name, []) for part in group]
        if all(len(each) == len(own) for each in series):  # else some have it not, or not of each iteration
            signals[name] = [sum(column) for column in zip(*series, strict=True)]
    is_hiding = first.reduce == "mean" and METRIC_KINDS[first.better].is_of_training  # errors that cancel
    return replace(
        first,
        values=[_COMBINE[first.reduce](column) for column in columns],
        slowest=slowest,
        secondary=signals,
        taken_from=[],
        squares=_sum_squares(group) if is_hiding else [],
        of_ranks=dict(sorted(of_ranks.items())),
    )


def _add_waits(group: Sequence[Observation], of_ranks: dict[int, dict[str, float]]) -> None:
    """Add each rank's mean wait for the last rank to enter a phase, and its mean delay after the first.

    A rank waits no longer than it is in the phase. An iteration that not all ranks enter has no wait.
    """
    came = [(part, part.began_at) for part in group if part.began_at]
    if len(came) < 2:
        return
    whole = [moments if all(moments) else () for moments in zip(*(began_at for _, began_at in came), strict=True)]
    for part, began_at in came:
        each = list(zip(began_at, part.values, whole, strict=True))
        waits = [min(max(moments) - at, seconds) if moments else 0.0 for at, seconds, moments in each]
        late = [at - min(moments) if moments else 0.0 for at, _, moments in each]
        for rank, means in part.of_ranks.items():
            of_ranks[rank] = means | {"wait_s": statistics.fmean(waits), "late_s": statistics.fmean(late)}


def _sum_squares(group: Sequence[Observation]) -> list[float]:
    """Sum over ranks of each value's squared deviation from their mean (Chan, Golub and LeVeque 1983)."""
    found = []
    for i in range(len(group[0].values)):
        count, mean, squares = 0, 0.0, 0.0
        for part in group:
            n = len(part.of_ranks)
            apart = part.values[i] / n - mean
            squares += (part.squares[i] if part.squares else 0.0) + apart * apart * count * n / (count + n)
            mean += apart * n / (count + n)
            count += n
        found.append(min(squares, metric.LARGEST_NUMBER))
    return found


def _measure(part: Observation) -> Sample:
    values = [value / len(part.of_ranks) for value in part.values] if part.reduce == "mean" else part.values
    kind = METRIC_KINDS[part.better]
    kept, value = part.taken_from, values[0] if values else None
    whole: list[float] = []
    if 0 < part.curve_steps < len(values):
        whole = [values[place] for place in metric.kept_places(len(values))]
        part = replace(part, squares=part.squares[: part.curve_steps])
        values = values[: part.curve_steps]
    if part.is_series:
        kept = values if kind.keeps_series else kinds.distribution(values)
        value = kind.launch_value(values)
        if part.is_phase:  # seconds: an iteration that does not enter the phase says nothing of it
            value = METRIC_KINDS["lower"].launch_value([v for v in values if v > 0] or values)
    return Sample(
        name=part.name,
        unit=part.unit,
        better=part.better,
        value=value,
        at=part.at,
        identity=part.identity,
        facts=part.facts,
        values=kept,
        whole=whole,
        whole_length=len(part.values) if whole else 0,
        beside=[part.beside[place] for place in metric.kept_places(len(part.beside))],
        spread=_spread(values, kept, part) if part.is_series or part.squares else None,
        companions={
            name: kinds.quantile(sums, kinds.LOWER_QUANTILE) if name.endswith("_s") else statistics.fmean(sums)
            for name, sums in part.secondary.items()
            if sums
        },
        ranks=len(part.of_ranks),
        reduce=None if part.reduce == kind.reduce else part.reduce,
        bounds=part.bounds,
    )


def _total(column: tuple[float, ...]) -> float:
    return sum(column) if all(isinstance(value, int) for value in column) else math.fsum(column)


_COMBINE: dict[str, Callable[[tuple[float, ...]], float]] = {
    "max": max, "min": min, "mean": _total, "sum": _total, "rank0": lambda column: column[0],
    "all": lambda column: column[0],
}  # fmt: skip


def _mean_but_slowest(values: Sequence[float], sign: float) -> float:
    """Mean without the slowest iteration, which garbage collection or another process may delay at any time."""
    times = sorted(values if sign > 0 else (1 / value for value in values))
    mean = statistics.fmean(times[:-1] or times)
    return mean if sign > 0 else 1 / mean


def _spread(values: list[float], kept: Sequence[float], part: Observation) -> Spread:
    over_ranks = [math.sqrt(squares / len(part.of_ranks)) for squares in part.squares]
    over_ranks = over_ranks if any(over_ranks) else over_ranks[:1]
    if not part.is_series:
        return Spread(over_ranks=over_ranks)
    slowest, times = None, 0
    if len(part.of_ranks) > 1 and part.slowest:
        slowest, times = Counter(part.slowest).most_common(1)[0]
    is_timing = METRIC_KINDS[part.better].is_noisy and len(values) >= kinds.FEWEST_OF_SERIES and min(*kept, *values) > 0
    return Spread(
        n=len(values),
        minimum=min(values),
        p25=kinds.quantile(values, 0.25),
        median=statistics.median(values),
        p95=kinds.nearest_rank(values, 0.95),
        p99=kinds.nearest_rank(values, 0.99),
        mean=statistics.fmean(values),
        stdev=statistics.stdev(values) if len(values) > 1 else 0.0,
        geometric_mean=statistics.geometric_mean(kept) if is_timing else None,
        mean_but_slowest=_mean_but_slowest(values, METRIC_KINDS[part.better].sign) if is_timing else None,
        slowest_rank=slowest,
        slowest_share=times / len(values),
        over_ranks=over_ranks,
    )
