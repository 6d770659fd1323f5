"""The clock of phases in a loop on a device that is made up: whose time it is, and that nobody waits inside a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from support import streams
from support.ranks import make_rank
from support.virtual_cuda import VirtualCuda

from pytest_distbench.records.metric import Observation
from pytest_distbench.worker.clock.parts import DeviceParts
from pytest_distbench.worker.context import RankContext

HOST_S, FORWARD_S, BACKWARD_S = 40e-6, 10e-6, 30e-6
ITERATIONS = 40


class Waits:
    """Counts how often the host waits for the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._wait = streams.wait_until
        monkeypatch.setattr(streams, "wait_until", self._counting)

    def _counting(self, moment: float) -> None:
        self.count += 1
        self._wait(moment)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> VirtualCuda:
    return VirtualCuda(monkeypatch)


def steps(rank: RankContext, loop: str) -> Iterator[int]:
    if loop == "goal":
        goal = rank.goal("accuracy", target=0.5, every=ITERATIONS, max_steps=ITERATIONS, min_steps=ITERATIONS)
        for step in goal.steps(samples_per_step=1):
            yield step
            goal.check(lambda: 0.9)
    else:
        mode: Literal["batch", "per-iteration"] = "batch" if loop == "batch" else "per-iteration"
        yield from rank.timed("step_time", warmup=3, iterations=ITERATIONS, mode=mode)


def train(cuda: VirtualCuda, rank: RankContext, *, reads: bool = False) -> None:
    with rank.phase("forward"):
        cuda.compute(HOST_S)
        cuda.launch(FORWARD_S)
    with rank.phase("backward"):
        cuda.compute(HOST_S)
        cuda.launch(BACKWARD_S)
    with rank.phase("metrics"):
        if reads:
            cuda.device.current.synchronize()
            cuda.compute(HOST_S)


def found(rank: RankContext) -> dict[str, Observation]:
    return {o.name.removeprefix("phase/step_time/"): o for o in rank.notebook.observations}


@pytest.mark.parametrize("loop", ["per-iteration", "batch", "goal"])
def test_nobody_waits_for_the_device_inside_a_step_but_the_step_itself(
    cuda: VirtualCuda, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    waits, inside = Waits(monkeypatch), []
    for reads in (False, True):
        rank = make_rank(device="cuda")
        for _ in steps(rank, loop):
            before = waits.count
            train(cuda, rank, reads=reads)
            inside.append(waits.count - before)

    each = len(inside) // 2
    assert inside == [0] * each + [1] * each


@pytest.mark.parametrize("loop", ["per-iteration", "batch"])
def test_a_phases_time_is_the_devices_and_the_hosts_stands_beside_it(cuda: VirtualCuda, loop: str) -> None:
    rank = make_rank(device="cuda")
    for _ in steps(rank, loop):
        train(cuda, rank)
    phases = found(rank)

    for name, seconds in (("forward", FORWARD_S), ("backward", BACKWARD_S), ("metrics", 0.0)):
        assert phases[name].values == pytest.approx([seconds] * ITERATIONS, abs=1e-9)
        place = phases[name].place
        assert place is not None
        assert place.host_s == pytest.approx([HOST_S if seconds else 0.0] * ITERATIONS, abs=1e-6)


def test_a_step_that_waits_for_its_device_shows_it_in_the_phase_that_waits(cuda: VirtualCuda) -> None:
    rank = make_rank(device="cuda")
    for _ in steps(rank, "per-iteration"):
        train(cuda, rank, reads=True)
    phases = found(rank)

    assert min(phases["metrics"].values) >= HOST_S
    whole = [sum(parts) for parts in zip(*(phases[n].values for n in ("forward", "backward", "metrics")), strict=True)]
    assert phases["step_time"].values == pytest.approx(whole, rel=0.03)


def test_in_a_training_on_a_device_the_phases_are_the_step(cuda: VirtualCuda) -> None:
    rank = make_rank(device="cuda")
    for _ in steps(rank, "goal"):
        cuda.launch(1e-3)  # the device is what there is to wait for
        train(cuda, rank)
        with rank.phase("optimizer"):
            cuda.launch(2e-3)
    phases = found(rank)

    assert phases["optimizer"].values == pytest.approx([2e-3] * ITERATIONS, abs=1e-9)
    assert phases["backward"].values == pytest.approx([BACKWARD_S] * ITERATIONS, abs=1e-9)


def test_a_phase_began_when_the_device_came_to_it(cuda: VirtualCuda) -> None:
    rank = make_rank(device="cuda")
    parts = DeviceParts(rank.delay)
    cuda.compute(1.0)
    cuda.launch(0.5)
    came = cuda.now + 0.5
    part = parts.begin()
    cuda.launch(0.25)
    part.end(0.0)
    span = part.read()

    assert span.began_at == pytest.approx(came, abs=1e-5)
    assert span.seconds == span.own_s == pytest.approx(0.25)
    assert span.host_s < 1e-5


def test_a_delay_is_a_kernel_behind_each_phase_and_what_is_around_it_is_not_delayed_twice(cuda: VirtualCuda) -> None:
    rank = make_rank(device="cuda", delay=0.5)
    for _ in rank.timed("step_time", warmup=3, iterations=5):
        with rank.phase("backward"):
            cuda.launch(BACKWARD_S)
            with rank.phase("all_reduce"):
                cuda.launch(FORWARD_S)
        cuda.launch(FORWARD_S)
    phases = found(rank)

    assert phases["backward/all_reduce"].values == pytest.approx([1.5 * FORWARD_S] * 5, rel=1e-3)
    assert phases["backward"].values == pytest.approx([1.5 * (BACKWARD_S + FORWARD_S)] * 5, rel=1e-3)
    assert phases["step_time"].values == pytest.approx([1.5 * (BACKWARD_S + 2 * FORWARD_S)] * 5, rel=1e-3)
