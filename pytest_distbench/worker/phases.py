"""Phases: the parts that a body names, where it is in them, and how long each took."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.breakdown import PhasePlace
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import PHASE, Scalar, metric_key
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.parts import HostParts, Part, Parts, Span
from pytest_distbench.worker.notebook import Notebook


@dataclass(slots=True, kw_only=True, eq=False)
class LoopPhase:
    """A phase of a loop: the names that lead to it from there, and its time in each timed iteration.

    Each series goes as far as the last iteration that entered it. ``sends``: it enters collectives outside of its own
    parts, as far as the iteration tells that is described. ``last_s`` is how long it took by itself when it was read
    last.
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
        """It took so long in a timed iteration, counted from 1; entered several times in one, that is the sum."""
        self.fill(iteration)
        self.seconds[-1] += span.seconds
        self.began_at[-1] = self.began_at[-1] or span.began_at
        self.host_s[-1] += span.host_s

    def fill(self, iterations: int) -> None:
        """So many were timed until now; those that did not enter it have zeros."""
        for series in (self.seconds, self.began_at, self.host_s):
            series += [0.0] * (iterations - len(series))


class _Ended(NamedTuple):
    """A phase that is over for the host, in which timed iteration; 0: in the warm-up."""

    phase: LoopPhase
    iteration: int
    part: Part


@dataclass(slots=True, kw_only=True, eq=False)
class Loop:
    """A loop of iterations with a clock, while a body is in it.

    ``num_timed`` are the timed iterations begun, 0 during warm-up. The phases are by path, and ``entered`` those that
    the body is in. The iterations of a loop that is captured are replayed without the host.
    """

    name: str
    at: dict[str, Scalar]
    parts: Parts
    is_captured: bool = False
    num_timed: int = 0
    phases: dict[str, LoopPhase] = field(default_factory=dict)
    entered: list[LoopPhase] = field(default_factory=list)
    _ended: list[_Ended] = field(default_factory=list)

    def begin_iteration(self) -> None:
        """A timed iteration begins."""
        self.num_timed += 1

    def end(self, phase: LoopPhase, part: Part) -> None:
        """A phase is over for the host."""
        part.end(phase.last_s)
        self._ended.append(_Ended(phase, self.num_timed, part))

    def collect(self) -> None:
        """Read the phases that are over. Called between iterations: the device has been waited for."""
        if not self._ended:
            return
        for phase, iteration, part in self._ended:
            span = part.read()
            phase.last_s = span.own_s
            if iteration:
                phase.add(iteration, span)
        self._ended.clear()
        self.parts.set_clock()


class Phases:
    """The phases and loops that a body is in, innermost last.

    Outside of loops the device is waited for at both ends of a phase, in a loop never inside of an iteration.

    Args:
        notebook: takes what was measured.
        clock: of phases outside of loops.
        synchronize: waits for the device.
        delay: of what a clock spans.
        make_parts: makes the clock of a loop's phases.
        sent: collectives so far in the iteration that is described, if it is one.
    """

    def __init__(
        self,
        notebook: Notebook,
        clock: Callable[[], float],
        synchronize: Callable[[], None],
        delay: Delay,
        make_parts: Callable[[], Parts],
        sent: Callable[[], int],
    ) -> None:
        self._notebook = notebook
        self._outside = HostParts(delay, clock)
        self._synchronize = synchronize
        self._make_parts = make_parts
        self._sent = sent
        self._open: list[Loop | str] = []
        self._is_apart = False
        self._ascribed = 0

    @property
    def in_loop(self) -> bool:
        """Whether a loop with a clock is open."""
        return any(isinstance(o, Loop) for o in self._open)

    @contextlib.contextmanager
    def loop(self, name: str, at: Mapping[str, Scalar], *, is_captured: bool = False) -> Iterator[Loop]:
        """Collect the phases of a loop. They are recorded at its end; of one that is left early, not."""
        loop = Loop(name=name, at=dict(at), parts=self._make_parts(), is_captured=is_captured)
        self._open.append(loop)
        try:
            yield loop
        finally:
            self._open.remove(loop)
        loop.collect()
        for path, phase in loop.phases.items():
            if phase.seconds:
                self._note(loop, path, phase)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """What happens inside is no part of its step, nor are the phases around it in the loop."""
        for phase in (phase for o in self._open if isinstance(o, Loop) for phase in o.entered):
            phase.is_apart = True
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False

    @contextlib.contextmanager
    def phase(self, name: str, *, better: Better, at: Mapping[str, Scalar]) -> Iterator[None]:
        """Time a part of the body; one that raises is not recorded.

        Outside a loop a name is used once. In one, the phase is always judged in the same way and ends in its
        iteration; a captured loop has none.
        """
        loop = next((o for o in reversed(self._open) if isinstance(o, Loop)), None)
        path = PHASE + "/".join([*(o.name if isinstance(o, Loop) else o for o in self._open), name])
        if loop is None:
            self._notebook.expect_new(path, at)
            with self._inside(name):
                self._synchronize()
                part = self._outside.begin()
                yield
            self._synchronize()
            part.end(0.0)
            self._notebook.note(path, part.read().seconds, unit="s", better=better, reduce="max", at=at)
            return
        phase = self._enter(loop, path, name, better)
        sent, ascribed = self._sent(), self._ascribed
        try:
            with self._inside(name):
                part = loop.parts.begin()
                yield
        finally:
            loop.entered.remove(phase)
        if loop not in self._open:
            raise RecordingError(f"phase({name!r}) was left after the loop {loop.name!r} in which it was entered")
        loop.end(phase, part)
        if (own := self._sent() - sent - (self._ascribed - ascribed)) > 0:  # the rest is that of phases inside
            phase.sends = True
            self._ascribed += own

    def _enter(self, loop: Loop, path: str, name: str, better: Better) -> LoopPhase:
        """A phase of a loop, its own from the first time that it is entered."""
        if loop.is_captured:
            raise RecordingError(
                f"phase({name!r}): an iteration of the loop {loop.name!r} is captured and replayed in one, and has no "
                "parts; use mode='per-iteration' for its phases"
            )
        if (phase := loop.phases.get(path)) is None:
            around = loop.entered[-1].names if loop.entered else ()
            phase = loop.phases[path] = LoopPhase(names=(*around, name), better=better)
        if phase.better != better:
            raise RecordingError(
                f"phase({name!r}): better={better!r}, and {phase.better!r} before in the same loop; give one"
            )
        phase.is_apart |= self._is_apart
        loop.entered.append(phase)
        return phase

    @contextlib.contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        self._open.append(name)
        try:
            yield
        finally:
            del self._open[len(self._open) - 1 - self._open[::-1].index(name)]

    def _note(self, loop: Loop, path: str, phase: LoopPhase) -> None:
        phase.fill(loop.num_timed)
        place = PhasePlace(
            loop=metric_key(loop.name, loop.at),
            path=list(phase.names),
            began_at=phase.began_at if phase.sends else [],
            host_s=phase.host_s if loop.parts.is_device else [],
            is_apart=phase.is_apart,
        )
        self._notebook.note(path, phase.seconds, unit="s", better=phase.better, reduce="max", at=loop.at, place=place)
