"""The clocks of an iteration and of its parts, the host's or the device's, and what a delay makes of them."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from support import streams
from support.ranks import make_rank
from support.virtual_cuda import VirtualCuda

from pytest_distbench.records.metric import Observation
from pytest_distbench.worker import clock
from pytest_distbench.worker.clock import Delay
from pytest_distbench.worker.clock import clocks as module
from pytest_distbench.worker.clock.clocks import BusyStream, HostStopwatch, Meter, block_length, cycles_per_s
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.phases import DeviceParts


@pytest.mark.parametrize(("iterations", "length"), [(1, 10), (600, 10), (601, 11), (6000, 100)])
def test_a_loop_has_at_most_sixty_blocks_of_ten_iterations_or_more(iterations: int, length: int) -> None:
    assert block_length(iterations) == length


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
def test_a_phase_has_the_devices_time_and_the_hosts(cuda: VirtualCuda, loop: str) -> None:
    rank = make_rank(device="cuda")
    for _ in steps(rank, loop):
        train(cuda, rank)
    phases = found(rank)

    for name, seconds in (("forward", FORWARD_S), ("backward", BACKWARD_S), ("metrics", 0.0)):
        assert phases[name].values == pytest.approx([seconds] * ITERATIONS, abs=1e-9)
        assert phases[name].host_s == pytest.approx([HOST_S if seconds else 0.0] * ITERATIONS, abs=1e-6)


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


class Loop:
    """Iterations that need so long to be enqueued; ``waits``: each waits for the device itself."""

    def __init__(self, host_s: float, *, waits: bool = False) -> None:
        self.held: list[float] = []
        self.busy = BusyStream(self.held.append)
        self.host_s = host_s
        self.waits = waits

    def run(self, iterations: int) -> list[bool]:
        """Whether it was enough, of each."""
        enough = []
        for _ in range(iterations):
            before = len(self.held)
            self.busy.hold()
            hold_s = self.held[-1] if len(self.held) > before else 0.0
            host_s = self.host_s + hold_s * self.waits
            enough.append(not self.waits and host_s < hold_s)
            self.busy.learn(host_s, was_enough=enough[-1])
        return enough


@pytest.mark.parametrize("host_s", [1e-6, 4e-5, 8e-5, 1e-3, 6e-3])
def test_some_iterations_teach_how_long_it_takes(host_s: float) -> None:
    loop = Loop(host_s)

    assert all(loop.run(20)[1:])
    assert loop.held[-1] == pytest.approx(max(module.SHORTEST_S, 3 * host_s))


@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
@pytest.mark.parametrize("loop", [Loop(50e-3), Loop(1e-4, waits=True)], ids=["long", "waits"])
def test_where_it_does_not_help_it_is_given_up_before_anything_is_measured(loop: Loop, warmup: int) -> None:
    """Values with and without the host's time in one series are of two kinds."""
    loop.run(warmup)
    loop.busy.end_warmup()
    held = len(loop.held)
    loop.run(50)

    assert len(loop.held) == held


class Card:
    """A GPU with its clocks in MHz, by seconds of work; ``turns``: one for each kernel, repeated."""

    def __init__(self, clocks: dict[float, float], *, turns: tuple[float, ...] = ()) -> None:
        self.clocks, self.turns = clocks, turns
        self.worked_s, self.kernels = 0.0, 0

    def kernel_s(self, cycles: int) -> float:
        reached = self.clocks[max(at for at in self.clocks if at <= self.worked_s)]
        mhz = self.turns[self.kernels % len(self.turns)] if self.turns else reached
        self.kernels += 1
        taken_s = cycles / (mhz * 1e6)
        self.worked_s += taken_s
        return taken_s


@pytest.mark.parametrize(
    ("card", "mhz"),
    [
        pytest.param(Card({0.0: 1980}), 1980, id="steady"),
        pytest.param(Card({0.0: 345, 0.03: 1980}), 1980, id="noticed after 30 ms"),
        pytest.param(Card({0.0: 210, 0.005: 800, 0.015: 1400, 0.0395: 1755}), 1755, id="by steps"),
        pytest.param(
            Card({0.0: 345, 0.047: 900, 0.0485: 1410}), 1410, id="in the middle of it when it is first believed"
        ),
        pytest.param(Card({0.0: 1980, 0.008: 1200}), 1200, id="capped"),
        pytest.param(Card({0.0: 0.0}, turns=(1000, 1900)), 1900, id="never two alike"),
    ],
)
def test_how_fast_the_device_counts_is_read_of_a_card_at_work(card: Card, mhz: float) -> None:
    assert cycles_per_s(card.kernel_s) == pytest.approx(mhz * 1e6, rel=0.01)


def busy_meter(iterations: int = 1) -> Meter:
    """A meter that was started, saw 10 ms of computing, and was stopped."""
    meter = Meter(Delay(0.0, time.perf_counter))
    meter.start()
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    meter.stop(iterations)
    return meter


def test_each_iteration_has_its_cpu_time_and_its_waits_or_of_several_their_mean() -> None:
    meter = busy_meter()
    meter.start()
    time.sleep(0.001)
    meter.stop()

    assert meter.cpu_s[0] >= 0.01
    assert meter.waits[1] >= 1
    assert len(meter.cpu_s) == len(meter.waits) == 2

    meter = busy_meter(10)
    meter.note(host_s=0.5, exposed=1.0)

    assert 0.001 <= meter.cpu_s[0] < 0.01
    assert meter.signals() == {"cpu_s": meter.cpu_s, "waits": meter.waits, "host_s": [0.5], "exposed": [1.0]}


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
    began_at, seconds, own_s, host_s = part.read()

    assert began_at == pytest.approx(came, abs=1e-5)
    assert seconds == own_s == pytest.approx(0.25)
    assert host_s < 1e-5


def test_of_several_iterations_it_is_the_mean() -> None:
    watch = HostStopwatch(Delay(0.0, time.perf_counter))
    watch.start(1000)
    time.sleep(0.05)
    mean = watch.stop()

    assert 5e-5 <= mean < 5e-2


def test_how_long_the_device_is_held_follows_the_host_as_far_as_it_helps() -> None:
    loop = Loop(5e-3)
    loop.run(3)
    loop.host_s = 2e-5
    loop.run(20)

    assert loop.held[-1] == pytest.approx(6e-5)

    loop = Loop(50e-3)
    loop.run(module.TRIES)

    assert loop.held == [module.FIRST_S, module.LONGEST_S, module.LONGEST_S]

    # 5 ms are covered, twenty times as much in one breath is not
    loop = Loop(5e-3)
    loop.run(5)
    loop.busy.end_warmup(20)
    loop.busy.hold(20)

    assert len(loop.held) == 5
    assert max(loop.held) <= module.LONGEST_S

    # A loop that begins to wait after its warm-up costs little, and counts in one way
    loop = Loop(1e-4)
    loop.run(10)
    loop.busy.end_warmup()
    held = len(loop.held)
    loop.waits = True
    loop.run(50)

    assert len(loop.held) == held + 50
    assert max(loop.held[held:]) == pytest.approx(4 * 3e-4)


@pytest.mark.parametrize("warmup", [2, 5])
def test_a_slow_first_iteration_is_no_reason_to_give_up(warmup: int) -> None:
    loop = Loop(1.0)
    loop.run(1)
    loop.host_s = 4e-5
    loop.run(warmup - 1)
    loop.busy.end_warmup()

    assert all(loop.run(20))


def test_a_card_whose_frequency_never_becomes_steady_is_given_up_in_time() -> None:
    card = Card({0.0: 0.0}, turns=(500, 900, 1700))
    cycles_per_s(card.kernel_s)

    assert card.kernels == 200


ROOMS = [Path(clock.__file__).parents[2] / room for room in ("worker", "workloads")]
APART = {Path(clock.__file__), ROOMS[0] / "site" / "sitecustomize.py", ROOMS[0] / "places.py"}
"""Modules without the rule: the clock's own, those that run without the package, and the recorder of places."""
NAMES = [name for name in vars(clock.HostClock) if not name.startswith("__")]


def of_the_module(patch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        patch.setattr(time, name, lambda: 0)


def wherever_it_is_found(patch: pytest.MonkeyPatch) -> None:
    """Replace an object as freezegun does: by identity, among the attributes of the package's modules and Python's."""
    real = {id(getattr(time, name)) for name in NAMES}
    ours = [one for name, one in sys.modules.items() if name.startswith("pytest_distbench")]
    for one in (time, *ours):
        for name, value in list(vars(one).items()):
            if id(value) in real:
                patch.setattr(one, name, lambda: 0)


def backwards(patch: pytest.MonkeyPatch) -> None:
    for name, real in {name: getattr(time, name) for name in NAMES}.items():
        patch.setattr(time, name, lambda real=real: -real())


@pytest.mark.parametrize("replace", [of_the_module, wherever_it_is_found, backwards])
@pytest.mark.parametrize("mode", ["per-iteration", "batch"])
def test_a_loop_is_timed_by_the_time_that_passes(
    monkeypatch: pytest.MonkeyPatch, replace: Callable[[pytest.MonkeyPatch], None], mode: str
) -> None:
    rank = make_rank()
    with monkeypatch.context() as patch:
        replace(patch)
        for _ in rank.timed("step", warmup=1, iterations=3, mode=mode):  # type: ignore[arg-type]
            time.sleep(0.002)
    [found] = rank.notebook.observations

    assert min(found.values) >= 0.002


def test_no_other_module_of_a_rank_uses_pythons_time_functions() -> None:
    asking = [
        f"{path.name}:{node.lineno}"
        for room in ROOMS
        for path in room.rglob("*.py")
        if path not in APART
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"time.{name}" for name in NAMES}
    ]

    assert asking == []


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> VirtualCuda:
    return VirtualCuda(monkeypatch)


def delay(share: float) -> Delay:
    return Delay(share, time.perf_counter)


@pytest.mark.parametrize("own_s", [1e-4, 1e-3, 1.0])
def test_what_is_spanned_is_longer_by_a_share_of_itself(host: VirtualCuda, own_s: float) -> None:
    slowdown, began = delay(0.2), host.now
    since = slowdown.mark()
    host.compute(own_s)
    slowdown.wait(since)

    assert host.now - began == pytest.approx(1.2 * own_s, abs=1e-6)
    assert slowdown.waited_s == pytest.approx(0.2 * own_s, abs=1e-6)


def test_what_is_apart_or_was_delayed_in_part_is_not_delayed_twice(host: VirtualCuda) -> None:
    """A step of 2 s, and an evaluation of 1 s in it that is no part of the step."""
    slowdown, began = delay(0.5), host.now
    step = slowdown.mark()
    evaluation = slowdown.mark()
    host.compute(1.0)
    slowdown.wait(evaluation, is_apart=True)
    host.compute(2.0)
    slowdown.wait(step, apart_s=1.5)

    assert host.now - began == pytest.approx(4.5, abs=1e-5)

    # An iteration of 3 s, 1 s of which is a phase
    slowdown, began = delay(0.5), host.now
    iteration = slowdown.mark()
    phase = slowdown.mark()
    host.compute(1.0)
    slowdown.wait(phase)
    host.compute(2.0)
    slowdown.wait(iteration)

    assert host.now - began == pytest.approx(4.5, abs=1e-5)
