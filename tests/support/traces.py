"""Traces as torch's profiler writes them, of ranks that never ran."""

from __future__ import annotations

from typing import Any

from pytest_distbench.launch.trace import Event, LoopTrace
from pytest_distbench.records.iteration import iteration_name


def event(name: str, begin: float, end: float, *, cat: str = "user_annotation", pid: int = 7, **more: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": begin, "dur": end - begin, **more}


def described(what: str, pid: int = 7, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": 0, "ts": 1.0, "args": args}


def arrow(number: int, begin: float, end: float) -> list[Event]:
    both = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "tid": 1, "id": number}
    return [{"ph": "s", "ts": begin, **both}, {"ph": "f", "bp": "e", "ts": end, **both}]


def loop_trace(*events: Event, rank: int = 0, loop: str = "step", steps: list[tuple[float, float]]) -> LoopTrace:
    """A rank whose iterations began and ended so, in microseconds, and what else was seen of it."""
    own = [event(iteration_name(loop, i), *step) for i, step in enumerate(steps)]
    return LoopTrace(rank=rank, loop=loop, events=[*own, *events])
