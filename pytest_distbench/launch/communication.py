"""How busy ranks were with communication in the iterations that torch's profiler saw: of its traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from pytest_distbench.launch.trace import Event, LoopTrace
from pytest_distbench.records.trace import BusyCommunication

_MICRO = 1e-6

_GLOO = "gloo:"
"""gloo's own threads carry a collective out, from when it has its turn there until it is over, and say so: waiting for
ranks that are late is in it. ``c10d::`` beside it is the call, which only enqueues."""
_NCCL = "nccl"
"""With it the kernels of NCCL begin (``ncclDevKernel_AllReduce_Sum_f32_RING_LL``). They run later than they were
enqueued, and belong to the iteration that enqueued them."""
_LAUNCHES = ("cuda_runtime", "cuda_driver")
"""What enqueues kernels."""

Span = tuple[float, float]


def busy_communication(traces: Sequence[LoopTrace]) -> dict[str, BusyCommunication]:
    """By the key of a loop, of all ranks that ran it; none of one in which no collective was seen."""
    found = {}
    for loop in dict.fromkeys(trace.loop for trace in traces):
        of_ranks = [(trace, trace.iterations()) for trace in traces if trace.loop == loop]
        seen = [(_collectives(trace.events, iterations), iterations) for trace, iterations in of_ranks if iterations]
        if any(collectives for collectives, _ in seen):
            found[loop] = _busy(seen)
    return found


def _busy(seen: Sequence[tuple[Mapping[str, Sequence[Span]], Sequence[Span]]]) -> BusyCommunication:
    ranks_s, totals_s = [], dict.fromkeys((name for collectives, _ in seen for name in collectives), 0.0)
    for collectives, iterations in seen:
        each = _MICRO / len(iterations)
        ranks_s.append(union(span for spans in collectives.values() for span in spans) * each)
        for name, spans in collectives.items():
            totals_s[name] += sum(end - begin for begin, end in spans) * each / len(seen)
    return BusyCommunication(
        ranks_s=ranks_s,
        totals_s=totals_s,
        iterations=min(len(iterations) for _, iterations in seen),
        iteration_s=fmean(end - begin for _, iterations in seen for begin, end in iterations) * _MICRO,
    )


def union(spans: Iterator[Span]) -> float:
    """How long at least one of them lasts."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _collectives(events: Sequence[Event], iterations: Sequence[Span]) -> dict[str, list[Span]]:
    """When collectives were under way, by name: what the plugin itself sends lies between the iterations."""
    launched: dict[int, float] = {
        e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in _LAUNCHES and _is_linked(e)
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


def _is_linked(event: Event) -> bool:
    return "correlation" in event.get("args", {})
