"""Phases: the parts that a body names, where it is in them, and how long each took."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import PHASE, Scalar
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.notebook import Notebook


class _OnDevice(NamedTuple):
    """A phase of a timed iteration, by the events at both of its ends: the device may not have come to them yet."""

    path: str
    iteration: int
    began: Any
    ended: Any


@dataclass(slots=True, kw_only=True, eq=False)
class Loop:
    """A loop of iterations with a clock, while a body is in it.

    ``num_timed`` are the timed iterations begun, 0 during warm-up. By a phase's path there are its seconds in each of
    them, as far as the last that entered it, and how it is judged. The iterations of one that is captured are replayed
    without the host.
    """

    name: str
    at: dict[str, Scalar]
    is_captured: bool = False
    num_timed: int = 0
    series: dict[str, list[float]] = field(default_factory=dict)
    better: dict[str, Better] = field(default_factory=dict)
    _pending: list[_OnDevice] = field(default_factory=list)

    def begin_iteration(self) -> None:
        """A timed iteration begins."""
        self.num_timed += 1
        while self._pending and self._pending[0].ended.query():
            self._read(self._pending.pop(0))

    def add(self, path: str, seconds: float) -> None:
        """A phase of the iteration took so long; in an iteration of the warm-up that is passed over."""
        self._add(path, seconds, self.num_timed)

    def add_on_device(self, path: str, began: Any, ended: Any) -> None:
        """As :meth:`add`, of two events that were recorded. They are read when the device has come to them."""
        self._pending.append(_OnDevice(path, self.num_timed, began, ended))

    def read_all(self) -> None:
        """Wait for the device, and read what is left."""
        for phase in self._pending:
            phase.ended.synchronize()
            self._read(phase)
        self._pending.clear()

    def _read(self, phase: _OnDevice) -> None:
        self._add(phase.path, float(phase.began.elapsed_time(phase.ended)) / 1e3, phase.iteration)

    def _add(self, path: str, seconds: float, iteration: int) -> None:
        if iteration:
            series = self.series.setdefault(path, [])
            series += [0.0] * (iteration - len(series))
            series[iteration - 1] += seconds


class Phases:
    """The phases and loops that a body is in, innermost last.

    In a loop on a device they are timed by its events, so that the host waits no more for it than without them; there
    a delay is the iteration's alone. Elsewhere the device is waited for at both ends of a phase.
    """

    def __init__(
        self,
        notebook: Notebook,
        clock: Callable[[], float],
        synchronize: Callable[[], None],
        delay: Delay,
        record_event: Callable[[], Any] | None = None,
    ) -> None:
        self._notebook = notebook
        self._delay = delay
        self._clock = clock
        self._synchronize = synchronize
        self._record_event = record_event
        self._open: list[Loop | str] = []

    @property
    def in_loop(self) -> bool:
        """Whether a loop with a clock is open."""
        return any(isinstance(o, Loop) for o in self._open)

    @contextlib.contextmanager
    def loop(self, name: str, at: Mapping[str, Scalar], *, is_captured: bool = False) -> Iterator[Loop]:
        """Collect the phases of a loop. They are recorded at its end; of one that is left early, not."""
        loop = Loop(name=name, at=dict(at), is_captured=is_captured)
        self._open.append(loop)
        try:
            yield loop
        finally:
            self._open.remove(loop)
        loop.read_all()
        for path, series in loop.series.items():
            series += [0.0] * (loop.num_timed - len(series))
            self._notebook.note(path, series, unit="s", better=loop.better[path], reduce="max", at=loop.at)

    @contextlib.contextmanager
    def phase(self, name: str, *, better: Better, at: Mapping[str, Scalar]) -> Iterator[None]:
        """Time a part of the body; one that raises is not recorded.

        Outside a loop a name is used once. In one, the phase is always judged in the same way and ends in its
        iteration; a captured loop has none.
        """
        path = PHASE + "/".join([*(o.name if isinstance(o, Loop) else o for o in self._open), name])
        loop = next((o for o in reversed(self._open) if isinstance(o, Loop)), None)
        if loop is None:
            self._notebook.expect_new(path, at)
        elif loop.is_captured:
            raise RecordingError(
                f"phase({name!r}): an iteration of the loop {loop.name!r} is captured and replayed in one, and has no "
                "parts; use mode='per-iteration' for its phases"
            )
        elif loop.better.setdefault(path, better) != better:
            raise RecordingError(
                f"phase({name!r}): better={better!r}, and {loop.better[path]!r} before in the same loop; give one"
            )
        on_device = self._record_event if loop is not None else None
        self._open.append(name)
        try:
            if on_device is not None:
                began = on_device()
            else:
                self._synchronize()
                mark = self._delay.mark()
                start = self._clock()
            yield
        finally:
            del self._open[len(self._open) - 1 - self._open[::-1].index(name)]
        if loop is not None and loop not in self._open:
            raise RecordingError(f"phase({name!r}) was left after the loop {loop.name!r} in which it was entered")
        if loop is not None and on_device is not None:
            loop.add_on_device(path, began, on_device())
            return
        self._synchronize()
        self._delay.wait(mark)
        seconds = self._clock() - start
        if loop is None:
            self._notebook.note(path, seconds, unit="s", better=better, reduce="max", at=at)
        else:
            loop.add(path, seconds)
