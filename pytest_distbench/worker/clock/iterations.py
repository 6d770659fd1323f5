"""The loop around the body of a ``timed`` loop, in each of its modes."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from pytest_distbench.records.wanted import Mode
from pytest_distbench.worker.clock import Delay
from pytest_distbench.worker.clock.clocks import (
    TRIES,
    DeviceStopwatch,
    HostStopwatch,
    Meter,
    Stopwatch,
    block_length,
    stream_occupier,
)
from pytest_distbench.worker.member import Member
from pytest_distbench.worker.observer import StepFollower
from pytest_distbench.worker.phases import Loop

BATCH = 20  # iterations of a batch, as nccl-tests has (``-n``)
MOST_OF_STRUCTURE = 10  # timed iterations, or further steps of a training, where no clock counts
_WARMUP_ON_DEVICE = 3  # rounds of an empty clock: first uses load and connect


def time_iterations(
    rank: Member,
    loop: Loop,
    label: str,
    *,
    mode: Mode,
    warmup: int,
    iterations: int,
    before: Callable[[int], object] | None = None,
) -> Generator[int, None, tuple[list[float], Meter]]:
    """Yield the index of each iteration, negative during warm-up; the code that runs until the next one is timed.

    A collective call: every iteration, or batch, begins with an untimed barrier. ``graph`` captures one iteration,
    index 0, and replays it without the host's code. On CUDA a warm-up has at least :data:`TRIES` iterations. ``before``
    is called with the index before each barrier; with ``batch`` and ``graph`` in the warm-up only.

    Returns the seconds of each timed iteration, or per iteration of each batch, and the meter.
    """
    meter = Meter(rank.delay)
    watch = _stopwatch(rank, meter)
    if warmup and rank.device.type == "cuda":
        warmup = max(TRIES, warmup)
    for i in range(-warmup, 0):
        if before is not None:
            before(i)
        if i == -1:
            rank.watch.begin(label)  # before the barrier: it takes a moment, and who comes late is seen in it
        rank.barrier()
        watch.start()
        yield i
        watch.stop()
        rank.watch.end()
        loop.collect()
    meter.of_host.clear()
    if rank.only_structure:
        iterations = min(iterations, MOST_OF_STRUCTURE)
    if mode != "graph":  # a replay takes the host another time than what is captured
        watch.end_warmup(max(batches(iterations)) if mode == "batch" else 1)
    if rank.profiler is not None:
        watch = rank.profiler.watch(watch, label)
    entered = rank.watch.entered()
    course = rank.watch.follow(label) if mode == "per-iteration" else None  # a batch has one clock, not to be disturbed
    match mode:
        case "per-iteration":
            assert course is not None
            times = yield from _one_by_one(
                rank, loop, label, watch, meter, iterations, course, is_described=warmup > 0, before=before
            )
        case "batch":
            times = yield from _in_batches(rank, loop, watch, meter, iterations)
        case "graph":
            times = yield from _replayed(rank, watch, meter, iterations)
    if rank.profiler is not None:
        rank.profiler.end_loop()
    if mode != "graph":
        rank.watch.compare(label, since=entered, iterations=iterations, course=course)
    return times, meter


def _one_by_one(
    rank: Member,
    loop: Loop,
    label: str,
    watch: Stopwatch,
    meter: Meter,
    iterations: int,
    course: StepFollower,
    *,
    is_described: bool,
    before: Callable[[int], object] | None,
) -> Generator[int, None, list[float]]:
    times = []
    block = block_length(iterations)
    for i in range(iterations):
        if i % block == 0:
            rank.take_turn()
        if before is not None:
            before(i)
        if i == 0 and not is_described:
            rank.watch.begin(label)
        if i == 0 or before is not None:
            course.begin()
        loop.begin_iteration()
        rank.barrier()
        meter.start()
        watch.start()
        yield i
        times.append(watch.stop())
        meter.stop()
        rank.watch.end()
        course.end(i + 1)
        loop.collect()
    return times


def _in_batches(
    rank: Member, loop: Loop, watch: Stopwatch, meter: Meter, iterations: int
) -> Generator[int, None, list[float]]:
    times = []
    first = 0
    for length in batches(iterations):
        rank.take_turn()
        rank.barrier()
        meter.start()
        watch.start(length)
        for i in range(first, first + length):
            loop.begin_iteration()
            yield i
        times.append(watch.stop())
        meter.stop(length)
        loop.collect()
        first += length
    return times


def _replayed(rank: Member, watch: Stopwatch, meter: Meter, iterations: int) -> Generator[int, None, list[float]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own threads ask for events meanwhile
        yield 0
    times = []
    block = block_length(iterations)
    graph.replay()  # the first one uploads it
    for i in range(iterations):
        if i % block == 0:
            rank.take_turn()
        rank.barrier()
        meter.start()
        watch.start()
        graph.replay()
        times.append(watch.stop())
        meter.stop()
    return times


def batches(iterations: int) -> list[int]:
    """Batch lengths for so many iterations: as equal as possible, at least :data:`BATCH` unless there are fewer."""
    count = max(1, iterations // BATCH)
    return [iterations // count + (i < iterations % count) for i in range(count)]


def _stopwatch(rank: Member, meter: Meter) -> Stopwatch:
    if rank.device.type != "cuda":
        return HostStopwatch(rank.delay)
    occupy = stream_occupier()
    empty = DeviceStopwatch(meter, rank.align_devices, occupy, Delay(0.0, rank.own_clock))
    for _ in range(_WARMUP_ON_DEVICE):
        empty.start()
        empty.stop()
    return DeviceStopwatch(meter, rank.align_devices, occupy, rank.delay)  # has learned nothing of empty rounds
