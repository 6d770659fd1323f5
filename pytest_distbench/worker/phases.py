"""Phases: the named parts of a body, which of them it is in, and how long each took on the host or the device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import PHASE, WALL_TIME, Scalar, metric_key
from pytest_distbench.worker.clock import Delay, HostClock
from pytest_distbench.worker.clock.clocks import recorded, stream_occupier
from pytest_distbench.worker.notebook import Notebook

Span = tuple[float, float, float, float]
"""A part's begin (CLOCK_MONOTONIC seconds, the same for all ranks of a host), its seconds, its seconds without a
positive control's delay, and the host's seconds."""


class HostPart:
    def __init__(self, delay: Delay, clock: Callable[[], float]) -> None:
        self._delay = delay
        self._now = clock
        self._seconds = 0.0
        self._mark = delay.mark()
        self._start = clock()

    def end(self, last_s: float) -> None:
        del last_s
        self._delay.wait(self._mark)
        self._seconds = self._now() - self._start

    def read(self) -> Span:
        return self._start, self._seconds, self._seconds, self._seconds


class DeviceParts:
    """Records events on the current stream, and reads them after the device has been waited for.

    A delay is an idle kernel after a part: a share of what the part took when last read.
    """

    def __init__(self, delay: Delay) -> None:
        self.delay = delay
        self.occupy = stream_occupier() if delay.share else None
        self.note_moment()

    def begin(self) -> DevicePart:
        return DevicePart(self)

    def note_moment(self) -> None:
        """Note a moment that host and device know, while the device is idle: their clocks diverge as time goes on."""
        self._known = recorded()
        self._known.synchronize()
        self._known_at = HostClock.perf_counter()

    def moment(self, event: torch.cuda.Event) -> float:
        return self._known_at + float(self._known.elapsed_time(event)) / 1e3


class DevicePart:
    def __init__(self, parts: DeviceParts) -> None:
        self._parts = parts
        self._added_s = self._host_s = 0.0
        self._mark = parts.delay.mark()
        self._began = self._ended = recorded()
        self._start = HostClock.perf_counter()

    def end(self, last_s: float) -> None:
        self._host_s = HostClock.perf_counter() - self._start
        delay = self._parts.delay
        self._added_s = delay.waited_s - self._mark[1]
        if self._parts.occupy is not None and (due_s := delay.rest(last_s, self._added_s)):
            self._parts.occupy(due_s)
            delay.waited_s += due_s
            self._added_s += due_s
        self._ended = recorded()

    def read(self) -> Span:
        self._ended.synchronize()  # it may be on a stream that the iteration did not wait for
        seconds = float(self._began.elapsed_time(self._ended)) / 1e3
        began_at = self._parts.moment(self._began)
        return began_at, seconds, max(0.0, seconds - self._added_s), self._host_s


Part = HostPart | DevicePart
"""A part that has begun. ``end(last_s)`` ends it on the host; ``last_s`` is its last reading in seconds, or 0. ``read``
returns its times, once the iteration has been waited for."""


@dataclass(slots=True, kw_only=True, eq=False)
class LoopPhase:
    """A phase of a loop: the names on its path, and its time in each timed iteration.

    Each series ends with the last iteration that entered it. ``sends``: the described iteration enters collectives
    outside of its inner phases. ``last_s``: its own time when last read.
    """

    names: tuple[str, ...]
    better: Better
    is_apart: bool = False
    sends: bool = False
    last_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    began_at: list[float] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)

    def add(self, iteration: int, span: Span) -> None:
        """Add a part to a timed iteration, counted from 1; parts of one iteration add up."""
        self.fill(iteration)
        began_at, seconds, _, host_s = span
        self.seconds[-1] += seconds
        self.began_at[-1] = self.began_at[-1] or began_at
        self.host_s[-1] += host_s

    def fill(self, iterations: int) -> None:
        for series in (self.seconds, self.began_at, self.host_s):
            series += [0.0] * (iterations - len(series))


@dataclass(slots=True, kw_only=True, eq=False)
class Loop:
    """A loop of timed iterations, while a body is in it.

    ``num_timed``: timed iterations begun, 0 during warm-up. ``phases``: by path; ``entered``: those the body is in.
    """

    name: str
    at: dict[str, Scalar]
    path: str
    device: DeviceParts | None = None
    is_captured: bool = False
    num_timed: int = 0
    phases: dict[str, LoopPhase] = field(default_factory=dict)
    entered: list[LoopPhase] = field(default_factory=list)
    _ended: list[tuple[LoopPhase, int, Part]] = field(default_factory=list)
    """(phase, timed iteration or 0 in the warm-up, part) of phases that have ended on the host."""

    def begin_iteration(self) -> None:
        """Begin a timed iteration. Raises RecordingError in a phase of the previous one."""
        self.expect_left()
        self.num_timed += 1

    def expect_left(self) -> None:
        if self.entered:
            name = self.entered[-1].names[-1]
            raise RecordingError(f"phase({name!r}) of the loop {self.name!r} was not left in its own iteration")

    def end(self, phase: LoopPhase, part: Part) -> None:
        part.end(phase.last_s)
        self._ended.append((phase, self.num_timed, part))

    def collect(self) -> None:
        """Read the phases that have ended. Called between iterations, after the device has been waited for."""
        if not self._ended:
            return
        for phase, iteration, part in self._ended:
            span = part.read()
            _, _, phase.last_s, _ = span
            if iteration:
                phase.add(iteration, span)
        self._ended.clear()
        if self.device is not None:
            self.device.note_moment()


class Phase:
    """Context manager of a named part of the body. It is no generator, as a short step may have many phases."""

    __slots__ = ("_phases", "ascribed", "at", "better", "name", "part", "path", "place", "sent")
    part: Part
    sent: int
    ascribed: int

    def __init__(self, phases: Phases, name: str, better: Better, at: Mapping[str, Scalar]) -> None:
        self._phases = phases
        self.name = name
        self.better = better
        self.at = at
        self.path = ""
        self.place: tuple[Loop, LoopPhase] | None = None

    def __enter__(self) -> None:
        self._phases.enter(self)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._phases.leave(self, is_cut=kind is not None)


@dataclass(slots=True, eq=False)
class Phases:
    """The phases and loops that a body is in, innermost last.

    Outside of loops both ends of a phase wait for the device; in a loop nothing waits inside an iteration. ``clock``
    times phases outside of loops; ``make_device`` times the parts of one loop on a device; ``sent``: collectives so far
    in the described iteration.
    """

    notebook: Notebook
    clock: Callable[[], float]
    synchronize: Callable[[], None]
    delay: Delay
    sent: Callable[[], int]
    make_device: Callable[[], DeviceParts | None] = lambda: None
    now_in_loops: Callable[[], float] = HostClock.perf_counter
    _open: list[Loop | Phase] = field(default_factory=list)
    _thread: int = field(default_factory=threading.get_ident)
    _is_apart: bool = False
    _ascribed: int = 0

    @property
    def in_loop(self) -> bool:
        return self._loop is not None

    @property
    def _loop(self) -> Loop | None:
        return next((o for o in reversed(self._open) if isinstance(o, Loop)), None)

    def _path(self, name: str) -> str:
        return f"{self._open[-1].path}/{name}" if self._open else PHASE + name

    @contextlib.contextmanager
    def loop(self, name: str, at: Mapping[str, Scalar], *, is_captured: bool = False) -> Iterator[Loop]:
        """Collect the phases of a loop, and record them at its end unless it is left early."""
        loop = Loop(name=name, at=dict(at), path=self._path(name), device=self.make_device(), is_captured=is_captured)
        self._open.append(loop)
        try:
            yield loop
        finally:
            if loop in self._open:  # else a phase around it was left before, which raised
                self._close(loop)
        loop.expect_left()
        loop.collect()
        for path, phase in loop.phases.items():
            if phase.seconds:
                phase.fill(loop.num_timed)
                self._record(
                    path,
                    phase.better,
                    loop.at,
                    phase.seconds,
                    loop=metric_key(loop.name, loop.at),
                    path=list(phase.names),
                    began_at=phase.began_at if phase.sends else [],
                    host_s=phase.host_s if loop.device is not None else [],
                    is_apart=phase.is_apart,
                )

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Exclude the time of the code inside from that of its step; the phases around it are marked ``is_apart``."""
        for phase in (phase for o in self._open if isinstance(o, Loop) for phase in o.entered):
            phase.is_apart = True
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False

    def enter(self, phase: Phase) -> None:
        """Begin to time a part of the body. Raises RecordingError in another thread, or if a rule is broken.

        Outside a loop a name is used once, except in scripts, and a phase that raises is not recorded. In a loop a
        phase is always judged in the same way and ends in its iteration; a captured loop has none.
        """
        if threading.get_ident() != self._thread:
            raise RecordingError(
                f"phase({phase.name!r}) was entered in the thread {threading.current_thread().name!r}; wanted the one "
                "that runs the body: what another does meanwhile is no part of a step"
            )
        phase.path, loop = self._path(phase.name), self._loop
        if loop is None:
            if not self.notebook.is_of_script:
                self.notebook.expect_new(phase.path, phase.at)
            self._open.append(phase)
            self.synchronize()
            phase.part = HostPart(self.delay, self.clock)
            return
        if loop.is_captured:
            raise RecordingError(
                f"phase({phase.name!r}): an iteration of the loop {loop.name!r} is captured and replayed in one, and "
                "has no parts; use mode='per-iteration' for its phases"
            )
        if (of_loop := loop.phases.get(phase.path)) is None:
            around = loop.entered[-1].names if loop.entered else ()
            of_loop = loop.phases[phase.path] = LoopPhase(names=(*around, phase.name), better=phase.better)
        of_loop.is_apart |= self._is_apart
        phase.place = loop, of_loop
        loop.entered.append(of_loop)
        self._open.append(phase)
        phase.sent, phase.ascribed = self.sent(), self._ascribed
        device = loop.device
        phase.part = HostPart(self.delay, self.now_in_loops) if device is None else device.begin()

    def leave(self, phase: Phase, *, is_cut: bool) -> None:
        """End a part; ``is_cut``: by an exception. Raises RecordingError if it was not the last one entered."""
        if phase not in self._open:
            if is_cut:
                return
            raise RecordingError(f"phase({phase.name!r}) was left after what it was entered in: {phase.path}")
        inner = self._close(phase)
        if inner is not None:
            if is_cut:
                return
            kind = "loop" if isinstance(inner, Loop) else "phase"
            raise RecordingError(
                f"phase({phase.name!r}) was left before the {kind} {inner.name!r} that was entered in it: their times "
                "would add up to more than there is"
            )
        if phase.place is None:
            if not is_cut:  # who waits for the device then may hang, and nobody hears of the error
                self.synchronize()
                phase.part.end(0.0)
                _, seconds, _, _ = phase.part.read()
                place: dict[str, Any] = {}
                if self.notebook.is_of_script:
                    place = {"loop": WALL_TIME, "path": [*(o.name for o in self._open), phase.name]}
                self._record(phase.path, phase.better, phase.at, seconds, **place)
            return
        loop, of_loop = phase.place
        # a loop goes on where the body catches what it raised: when a loader is empty, for example
        with contextlib.suppress(RuntimeError) if is_cut else contextlib.nullcontext():  # of a device that has failed
            loop.end(of_loop, phase.part)
        if (own := self.sent() - phase.sent - (self._ascribed - phase.ascribed)) > 0:  # the rest: of phases inside
            of_loop.sends = True
            self._ascribed += own

    def _close(self, one: Loop | Phase) -> Loop | Phase | None:
        at = self._open.index(one)
        inner = next(iter(self._open[at + 1 :]), None)
        del self._open[at:]
        if isinstance(one, Phase) and one.place is not None:
            loop, of_loop = one.place
            del loop.entered[loop.entered.index(of_loop) :]
        return inner

    def _record(self, name: str, better: Better, at: Mapping[str, Scalar], value: object, **place: Any) -> None:
        self.notebook.note(name, value, unit="s", better=better, reduce="max", at=at, **place)
