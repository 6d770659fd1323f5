"""Traces of torch's profiler: one file of all ranks or one per rank, and the time each rank spent in collectives.

The format is Chrome's trace event format, which Perfetto and chrome://tracing read: a list of events with a kind
(``ph``), a process and a thread (``pid``, ``tid``), and a time in microseconds (``ts``). Each rank and each of its GPUs
is a process. Ranks of one host share a clock, the host's.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import msgspec

from pytest_distbench.errors import ReadingError
from pytest_distbench.records.iteration import BusyCommunication, iteration_name
from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.places import CasePlaces, RankPlaces
from pytest_distbench.records.plan import LaunchPlan

Event = dict[str, Any]

_NAMES = ("process_name", "process_sort_index")  # what names and orders processes: ours replace them
_DESCRIPTION = "M"  # the kind of event that describes a process or thread, whose time means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTrace:
    """The profiler's events of one rank in one loop; times in microseconds of its host's clock.

    ``loop``: the key of its metric, or :data:`~pytest_distbench.records.iteration.WHOLE`.
    """

    rank: int
    loop: str
    events: Sequence[Event]

    @property
    def is_empty(self) -> bool:
        return not any(True for _ in _timed(self))

    def iterations(self) -> list[tuple[float, float]]:
        """Begin and end of each iteration, in microseconds of the host's clock."""
        ours = (e for e in self.events if e.get("cat") == "user_annotation" and self.index_of(e) is not None)
        return sorted((event["ts"], event["ts"] + event["dur"]) for event in ours)

    def index_of(self, event: Event) -> int | None:
        """Index of the iteration that an event marks, from 0, or None."""
        stem = iteration_name(self.loop, 0).removesuffix("0")
        name = str(event.get("name"))
        index = name.removeprefix(stem)
        return int(index) if name.startswith(stem) and index.isdecimal() else None


Side = tuple[str, str, Sequence[LoopTrace]]
"""A launch in a trace file: texts before and after ``rank 0`` in the names of its processes; and the ranks' traces."""


def origin(traces: Sequence[LoopTrace]) -> float:
    """Moment at which traces of several sides are aligned: first iteration, else first event."""
    begins = [begin for trace in traces for begin, _ in trace.iterations()]
    return min(begins or [event["ts"] for trace in traces for event in _timed(trace)], default=0.0)


def read_traces(plan: LaunchPlan) -> list[LoopTrace]:
    """All traces of a launch that has passed. Raises ReadingError if a rank's traces are missing or damaged."""
    found = []
    for rank in range(plan.processes):
        try:
            with open_left(plan.files.loops(rank)) as file:
                loops = msgspec.json.decode(file.read(), type=list[str])
            for number, loop in enumerate(loops):
                with open_left(plan.files.trace(rank, number)) as file:
                    document = msgspec.json.decode(file.read(), type=dict[str, Any])
                # Events without a process are about the profiler itself.
                events = [event for event in document["traceEvents"] if isinstance(event.get("pid"), int)]
                found.append(LoopTrace(rank=rank, loop=loop, events=events))
        except (OSError, msgspec.DecodeError, KeyError) as error:
            raise ReadingError(f"the profiler's trace of rank {rank} is incomplete: {error}") from None
    return found


def read_places(plan: LaunchPlan) -> list[RankPlaces]:
    """Places where the ranks of a passed launch spent their time, in order of rank."""
    found = []
    for rank in range(plan.processes):
        try:
            with open_left(plan.files.places(rank)) as file:
                found.append(msgspec.json.decode(file.read(), type=RankPlaces))
        except (OSError, msgspec.DecodeError) as error:
            raise ReadingError(f"rank {rank} recorded no places: {error}") from None
    return found


def write_file(sides: Sequence[Side], places: CasePlaces | None = None) -> bytes:
    """The traces of all sides in one gzipped file, aligned at their :func:`origin`."""
    origins = [origin(traces) for *_, traces in sides]
    laid = list(zip(sides, origins, strict=True))
    first = min((e["ts"] - start for (*_, traces), start in laid for t in traces for e in _timed(t)), default=0.0)
    numbers: Numbers = {}
    order = itertools.count()
    events = [
        event
        for side, start in laid
        for rank in dict.fromkeys(trace.rank for trace in side[2])
        for event in _events_of_rank(side, rank, numbers, order, shift=-start - first)
    ]
    events += _noted(places)
    document = {"traceEvents": events, "displayTimeUnit": "ms"}
    return gzip.compress(msgspec.json.encode(document), compresslevel=6, mtime=0)


def write_ranks(traces: Sequence[LoopTrace], backend: str, places: CasePlaces | None = None) -> dict[int, bytes]:
    """A gzipped file per rank, as torch's own handlers write them, for HTA and other tools that want one per rank.

    HTA searches the text for ``"rank": 0``, with the blank, and recognises iterations by the name that torch's schedule
    gives them. Iterations of all loops of a rank are numbered consecutively.
    """
    ranks = list(dict.fromkeys(trace.rank for trace in traces))
    first = min((event["ts"] for trace in traces for event in _timed(trace)), default=0.0)
    files = {}
    for rank in ranks:
        own: list[LoopTrace] = []
        begin = 0
        for trace in traces:
            if trace.rank == rank:
                indices = [trace.index_of(event) for event in trace.events]
                steps = [{} if i is None else {"name": f"ProfilerStep#{begin + i}"} for i in indices]
                events = [event | step for event, step in zip(trace.events, steps, strict=True)]
                own.append(replace(trace, events=events))
                begin += len(trace.iterations())
        document = {
            "distributedInfo": {"rank": rank, "world_size": len(ranks), "backend": backend},
            "displayTimeUnit": "ms",
            "traceEvents": [
                *_events_of_rank(("", "", own), rank, {}, itertools.count(), shift=-first),
                *_noted(places),
            ],
        }
        files[rank] = gzip.compress(json.dumps(document).encode(), compresslevel=6, mtime=0)
    return files


def _noted(places: CasePlaces | None) -> list[Event]:
    """A trace event at the beginning that says which lines became slower, found in launches without profiler; or []."""
    if places is None or not places.sentence:
        return []
    args = {"recorded": "in other launches than this trace", "places": msgspec.to_builtins(places.rows)}
    return [{"ph": "i", "s": "g", "name": f"where: {places.sentence}", "pid": 1, "tid": 0, "ts": 0.0, "args": args}]


Numbers = dict[tuple[object, ...], int]  # numbers of a file, by what they stand for


def _events_of_rank(side: Side, rank: int, numbers: Numbers, order: Iterator[int], *, shift: float) -> Iterator[Event]:
    called, note, all_traces = side
    traces = [trace for trace in all_traces if trace.rank == rank]

    def number(*what: object) -> int:
        return numbers.setdefault((called, rank, *what), len(numbers) + 1)

    labels = {e["pid"]: e["args"]["labels"] for t in traces for e in t.events if e["name"] == "process_labels"}
    used = dict.fromkeys(event["pid"] for trace in traces for event in _timed(trace))
    for pid in used:
        label = str(labels.get(pid, ""))
        name = " ".join(filter(None, [called, f"rank {rank}", label if label.startswith("GPU") else "", note]))
        about = {"ph": _DESCRIPTION, "pid": number(pid), "tid": 0}
        yield {**about, "name": "process_name", "args": {"name": name}}
        yield {**about, "name": "process_sort_index", "args": {"sort_index": next(order)}}
    for loop, trace in enumerate(traces):
        for event in trace.events:
            if event["pid"] not in used or event["name"] in _NAMES:
                continue
            shifted = {**event, "pid": number(event["pid"])}
            if event["ph"] != _DESCRIPTION:
                shifted["ts"] = round(event["ts"] + shift, 3)
            if "id" in event:  # of an arrow, which has two ends
                shifted["id"] = number(loop, event.get("cat"), event["id"])
            yield shifted


def _timed(trace: LoopTrace) -> Iterator[Event]:
    return (event for event in trace.events if event["ph"] != _DESCRIPTION)


_MICRO = 1e-6

_GLOO = "gloo:"
"""Events of gloo's own threads, which execute collectives and wait for late ranks; ``c10d::`` events only enqueue."""
_NCCL = "nccl"
"""Prefix of NCCL's kernels (``ncclDevKernel_AllReduce_Sum_f32_RING_LL``), which belong to the iteration that enqueued
them."""
_LAUNCHES = ("cuda_runtime", "cuda_driver")

Span = tuple[float, float]


def busy_communication(traces: Sequence[LoopTrace]) -> dict[str, BusyCommunication]:
    """Time in collectives by loop, over all ranks that ran it; without loops that have none."""
    found = {}
    for loop in dict.fromkeys(trace.loop for trace in traces):
        of_ranks = [(trace, trace.iterations()) for trace in traces if trace.loop == loop]
        seen = [(_collectives(trace.events, iterations), iterations) for trace, iterations in of_ranks if iterations]
        if not any(collectives for collectives, _ in seen):
            continue
        ranks_s, totals_s = [], dict.fromkeys((name for collectives, _ in seen for name in collectives), 0.0)
        for collectives, iterations in seen:
            each = _MICRO / len(iterations)
            ranks_s.append(union(span for spans in collectives.values() for span in spans) * each)
            for name, spans in collectives.items():
                totals_s[name] += sum(end - begin for begin, end in spans) * each / len(seen)
        found[loop] = BusyCommunication(
            ranks_s=ranks_s,
            totals_s=totals_s,
            iterations=min(len(iterations) for _, iterations in seen),
            iteration_s=fmean(end - begin for _, iterations in seen for begin, end in iterations) * _MICRO,
        )
    return found


def union(spans: Iterator[Span]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _collectives(events: Sequence[Event], iterations: Sequence[Span]) -> dict[str, list[Span]]:
    launched: dict[int, float] = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in _LAUNCHES and "correlation" in e.get("args", {})
    }
    found: dict[str, list[Span]] = {}
    for event in events:
        name = str(event["name"])
        if event.get("cat") == "kernel" and name.startswith(_NCCL):
            at = launched.get(event["args"]["correlation"], -1.0)
            spans = [(event["ts"], event["ts"] + event["dur"])] * any(a <= at <= b for a, b in iterations)
            name = str(event["args"].get("Collective name") or name.partition("(")[0])
        elif name.startswith(_GLOO) and "dur" in event:
            begin, end = event["ts"], event["ts"] + event["dur"]
            spans = [(max(a, begin), min(b, end)) for a, b in iterations if a < end and begin < b]
            name = name.removeprefix(_GLOO)
        else:
            continue
        if spans:
            found.setdefault(name, []).extend(spans)
    return found
