"""Profiler: torch's own in a rank of a launch for a trace, or a recorder of places; no other launch imports it.

It records a few timed iterations of each loop; without a loop, training steps from the third on; without either, the
first :data:`WHOLE_CPU_S` of a body, in a launch of its own, as an operation that begins under one profiler and ends
under the next has crashed torch 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_distbench.records.iteration import TRAINING_STEP, WHOLE, iteration_name, name_in_trace
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.worker import places
from pytest_distbench.worker.clock.clocks import Steps, Stopwatch
from pytest_distbench.worker.peaks import AllocatorPeak, TensorPeak
from pytest_distbench.worker.steps import training_steps

ITERATIONS = 10  # per loop: more than one, as no two are alike, and few enough for a viewer to open the file at once

WHOLE_CPU_S = 0.2
"""CPU seconds of a whole body that are recorded: small operations produce almost a million events per second."""

_STEADY_STEP = 3  # the first steps also build


class _Instrument(Protocol):
    """torch's profiler or a recorder of places, for the iterations of one loop: start, iterations, stop."""

    def start(self) -> None: ...

    def iteration(self, name: str) -> AbstractContextManager[object]: ...

    def stop(self) -> None: ...


class _Trace(profile):
    def iteration(self, name: str) -> AbstractContextManager[object]:
        return record_function(name)


@dataclass(slots=True, kw_only=True, eq=False)
class Profiler:
    """Profiles one rank, loop after loop, into the launch's files.

    ``is_whole``: profile the whole body. ``root``: folder below which places are recorded instead of a trace, or "".
    ``memory``: records what is alive, too.
    """

    files: LaunchFiles
    rank: int
    is_whole: bool
    root: str = ""
    memory: TensorPeak | AllocatorPeak | None = None
    is_on_device: bool
    synchronize: Callable[[], None]
    barrier: Callable[[], None]
    in_loop: Callable[[], bool]
    _running: _Instrument | None = None
    _iteration: AbstractContextManager[object] | None = None
    _seen: int = 0
    _training_steps: int = 0
    _loops: list[str] = field(default_factory=list)
    _places: list[places.PlaceRecorder] = field(default_factory=list)

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Profile the loops that run inside, or all of it, and write the traces."""
        before = signal.signal(signal.SIGVTALRM, lambda *_: self.end_loop())
        if self.is_whole:
            self._begin_loop(WHOLE)
            signal.setitimer(signal.ITIMER_VIRTUAL, WHOLE_CPU_S)
        path = self.files.places(self.rank)
        try:
            with (
                training_steps(self._step),
                places.sampled_workers(path, self.root) if self.root else contextlib.nullcontext(),
                self.memory or contextlib.nullcontext(),
            ):
                yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)
            self.end_loop()
        if self.root:
            peaks = {} if self.memory is None else self.memory.peaks()
            path.write_bytes(places.encode(self._places, peaks, self.root, places.read_work(path)))
        self.files.loops(self.rank).write_bytes(msgspec.json.encode(self._loops))

    def watch(self, watch: Stopwatch, loop: str) -> Stopwatch:
        return _ProfiledWatch(watch, self, loop)

    def steps(self, steps: Steps, loop: str, *, after: int) -> Steps:
        return _ProfiledSteps(steps, self, loop, after=after)

    @contextlib.contextmanager
    def phase(self, name: str, inside: AbstractContextManager[None]) -> Iterator[None]:
        with record_function(name_in_trace(name)), inside:
            yield

    def begin_iteration(self, loop: str) -> None:
        """Begin an iteration of a timed loop. A collective call: ranks begin once all profilers have started."""
        if self.is_whole:
            return
        if self._loops[-1:] != [loop]:
            if self._loops == [TRAINING_STEP]:  # before the first loop, which was to come
                self._stop()
                self._loops.clear()
            self._begin_loop(loop)
            self.barrier()
        self._begin_iteration(loop)

    def end_iteration(self) -> None:
        """End the measured part of an iteration; after enough of them the profiler stops."""
        if self._iteration is None:
            return
        self._iteration.__exit__(None, None, None)
        self._iteration = None
        self._seen += 1
        if self._seen == (places.RECORDED if self.root else ITERATIONS):
            self.end_loop()

    def end_loop(self) -> None:
        stopped = self._stop()
        if isinstance(stopped, places.PlaceRecorder):
            self._places.append(stopped)
        elif isinstance(stopped, _Trace):
            stopped.export_chrome_trace(str(self.files.trace(self.rank, len(self._loops) - 1)))

    def _begin_loop(self, loop: str) -> None:
        self.end_loop()
        self._loops.append(loop)
        self._seen = 0
        self.synchronize()
        activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * self.is_on_device]
        recorder = functools.partial(places.PlaceRecorder, loop, self.root, self.synchronize)
        self._running = recorder() if self.root else _Trace(activities=activities)
        self._running.start()

    def _begin_iteration(self, loop: str) -> None:
        if self._running is not None:
            self._iteration = self._running.iteration(iteration_name(loop, self._seen))
            self._iteration.__enter__()

    def _step(self) -> None:
        """Note that a training step begins; without a timed loop, steps are profiled as iterations."""
        if self.is_whole or self.in_loop() or self._loops not in ([], [TRAINING_STEP]):
            return
        self._training_steps += 1
        if self._training_steps == _STEADY_STEP:
            self._begin_loop(TRAINING_STEP)
        if self._training_steps >= _STEADY_STEP:
            self.end_iteration()
            self._begin_iteration(TRAINING_STEP)

    def _stop(self) -> _Instrument | None:
        if self._iteration is not None:
            self._iteration.__exit__(None, None, None)
            self._iteration = None
        if self._running is None:
            return None
        self.synchronize()
        running, self._running = self._running, None
        running.stop()
        return running


@dataclass(slots=True)
class _ProfiledWatch:
    _watch: Stopwatch
    _profiler: Profiler
    _loop: str

    def start(self, iterations: int = 1) -> None:
        """Start the watch, which may wait for other ranks, before the profiler."""
        self._watch.start(iterations)
        self._profiler.begin_iteration(self._loop)

    def stop(self) -> float:
        self._profiler.end_iteration()
        return self._watch.stop()

    def end_warmup(self, iterations: int = 1) -> None:
        self._watch.end_warmup(iterations)


class _ProfiledSteps:
    def __init__(self, steps: Steps, profiler: Profiler, loop: str, *, after: int) -> None:
        self._steps = steps
        self._profiler = profiler
        self._loop = loop
        self._left_out = after
        self.times = steps.times

    def begin(self) -> None:
        self._steps.begin()
        if self._left_out:
            self._left_out -= 1
        else:
            self._profiler.begin_iteration(self._loop)

    def pause(self) -> None:
        self._profiler.end_iteration()
        self._steps.pause()

    def end(self, apart_s: float, *, ends_block: bool) -> None:
        self._profiler.end_iteration()
        self._steps.end(apart_s, ends_block=ends_block)
