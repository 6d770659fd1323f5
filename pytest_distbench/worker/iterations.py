"""Iterations: the clock around the body of a ``timed`` loop."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import torch

from pytest_distbench.worker.blocks import block_length
from pytest_distbench.worker.meter import Meter
from pytest_distbench.worker.phases import Loop

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def time_iterations(
    rank: RankContext, loop: Loop, label: str, *, warmup: int, iterations: int
) -> Generator[int, None, tuple[list[float], Meter]]:
    """Yield the index of each iteration, negative during warm-up; what happens until the next is timed.

    A collective call: every iteration begins with an untimed barrier.

    Args:
        rank: where it runs.
        loop: is told which iterations are timed.
        label: key of the fingerprint.
        warmup: untimed iterations before the first timed one.
        iterations: timed ones.

    Returns:
        Seconds of each timed iteration, and what they cost besides.
    """
    times = []
    meter = Meter()
    block = block_length(iterations)
    for i in range(-warmup, 0):
        rank.barrier()
        if i == -1:
            rank.watch.begin(label)
        yield i
        rank.watch.end(ahead=iterations)
    for i in range(iterations):
        if i % block == 0:
            rank.take_turn()
        if i == 0 and not warmup:
            rank.watch.begin(label)
        loop.begin_iteration()
        rank.barrier()
        meter.start()
        if rank.device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield i
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            yield i
            times.append(time.perf_counter() - start)
        meter.stop()
        rank.watch.end(ahead=iterations - 1 - i)
    return times, meter
