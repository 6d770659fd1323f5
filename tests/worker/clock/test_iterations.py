"""The loops around a body that is timed: iterations, and steps of a training."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from support import streams
from support.launching import Launch
from support.ranks import make_rank
from support.virtual_cuda import VirtualCuda

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.kinds import LOWER_QUANTILE, quantile
from pytest_distbench.records.metric import Observation
from pytest_distbench.worker.clock.iterations import batches
from pytest_distbench.worker.context import RankContext

HOST_S, DEVICE_S = 2e-3, 4e-3


def train(
    cuda: VirtualCuda,
    rank: RankContext,
    *,
    reads_loss: bool = False,
    host_s: float = HOST_S,
    every: int = 60,
    evaluation_s: float = 0.0,
) -> dict[str, Observation]:
    """60 steps that the host prepares for 2 ms, and the device computes for 4 ms."""
    goal = rank.goal("accuracy", target=0.5, every=every, max_steps=60, min_steps=60)

    def evaluate() -> float:
        cuda.compute(evaluation_s)
        return 1.0

    for _ in goal.steps(samples_per_step=8):
        cuda.compute(host_s)
        cuda.launch(DEVICE_S)
        if reads_loss:
            cuda.device.current.synchronize()  # loss.item()
        goal.check(evaluate)
    return {o.name: o for o in rank.notebook.observations}


def value(found: dict[str, Observation]) -> float:
    return quantile(found["step_time"].values, LOWER_QUANTILE)


def test_the_device_is_waited_for_once_a_block_and_the_host_gets_ahead_with_every_step_of_one(
    cuda: VirtualCuda,
) -> None:
    times = train(cuda, make_rank(device="cuda"))["step_time"].values
    waits = cuda.counts()["synchronize"]

    assert len(times) == 60
    assert waits == 3 + 6 + 1 + 2  # the first three steps, blocks of ten, the last; before and after the evaluation
    assert times[10:20] == [times[10]] * 10

    lead_s = train(cuda, make_rank(device="cuda"))["step_time"].secondary["lead_s"]

    assert [b - a for a, b in itertools.pairwise(lead_s[9:19])] == [pytest.approx(2e-3, rel=0.01)] * 9


@pytest.mark.parametrize(
    ("options", "host_s", "lead_s"),
    [({}, HOST_S, 4e-3), ({"host_s": 6e-3}, 6e-3, DEVICE_S), ({"reads_loss": True}, HOST_S + DEVICE_S, 0.0)],
)
def test_a_step_time_has_the_hosts_share_and_its_lead(
    cuda: VirtualCuda, options: dict[str, object], host_s: float, lead_s: float
) -> None:
    step_time = train(cuda, make_rank(device="cuda"), **options)["step_time"]  # type: ignore[arg-type]

    assert set(step_time.secondary) == {"cpu_s", "waits", "host_s", "lead_s"}
    assert {len(values) for values in step_time.secondary.values()} == {60}
    assert quantile(step_time.secondary["host_s"], 0.5) == pytest.approx(host_s, rel=0.01)
    assert min(step_time.secondary["lead_s"]) == pytest.approx(lead_s, abs=1e-5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_delay_makes_all_timings_of_a_training_longer_by_its_share(cuda: VirtualCuda, device: str) -> None:
    """The evaluations too: they are part of the time to the goal."""
    options = {"every": 15, "evaluation_s": 0.02}
    healthy, delayed = (
        train(cuda, make_rank(device=device, delay=share), **options)  # type: ignore[arg-type]
        for share in (0.0, 0.5)
    )

    assert value(delayed) / value(healthy) == pytest.approx(1.5, rel=0.01)
    for name, by in [("evaluation_time", 1.5), ("samples_per_second", 1 / 1.5)]:
        assert delayed[name].values[0] / healthy[name].values[0] == pytest.approx(by, rel=0.02)
    for name in ("steps_to_accuracy", "final_accuracy"):
        assert delayed[name].values == healthy[name].values


KERNEL_S = 10e-6


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> VirtualCuda:
    return VirtualCuda(monkeypatch)


def measure(
    cuda: VirtualCuda, host_s: float, *, waits: bool = False, delay: float = 0.0, **loop: object
) -> Observation:
    """A loop whose iteration takes the host so long, and the device 10 us."""
    rank = make_rank(device="cuda", delay=delay)
    for _ in rank.timed("kernel", **{"warmup": 5, "iterations": 60, **loop}):  # type: ignore[arg-type]
        cuda.compute(host_s)
        cuda.launch(KERNEL_S)
        if waits:
            cuda.device.current.synchronize()
    [found] = rank.notebook.observations
    return found


def is_in_each_mode(rank: RankContext) -> None:
    """Runs in ranks with the simulated CUDA, as it makes a whole process believe that it has CUDA."""
    from support import stand_in_cuda as cuda

    for mode in ("per-iteration", "batch", "graph"):
        for _ in rank.timed(mode, warmup=5, iterations=100, mode=mode):
            until = time.perf_counter() + 4 * KERNEL_S
            while time.perf_counter() < until:
                pass
            cuda.launch(KERNEL_S)


def test_a_batch_is_timed_in_one_breath_on_the_cpu_too() -> None:
    rank = make_rank()
    waits = []
    rank.barrier = lambda: waits.append(1)  # type: ignore[method-assign]
    seen = []
    for i in rank.timed("step", warmup=1, iterations=45, identity={"layers": 1}, mode="batch"):
        seen.append(i)
        time.sleep(1e-4)
    [timed] = rank.notebook.observations

    assert seen == list(range(-1, 45))
    assert len(waits) == 1 + 2
    assert timed.identity == {"layers": 1, "mode": "batch"}
    assert len(timed.values) == 2
    assert all(1e-4 <= value < 1e-2 for value in timed.values)
    assert [len(values) for values in timed.secondary.values()] == [2, 2]


@pytest.mark.parametrize(
    ("iterations", "lengths"), [(1, [1]), (19, [19]), (20, [20]), (39, [39]), (45, [23, 22]), (60, [20, 20, 20])]
)
def test_batches_are_about_equal(iterations: int, lengths: list[int]) -> None:
    assert batches(iterations) == lengths


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "graph"}, r"timed\('step'\): mode='graph' replays a CUDA graph, and this rank computes on the cpu"),
        ({"mode": "batches"}, "mode='batches'; wanted one of per-iteration, batch, graph"),
        ({"mode": "batch", "warmup": 0}, "mode='batch' needs a warm-up"),
        ({"mode": "batch", "identity": {"mode": "per-iteration"}}, "mode='batch', and 'per-iteration' in identity="),
        ({"identity": {"mode": "batch"}}, "mode='per-iteration', and 'batch' in identity="),
    ],
)
def test_an_unknown_mode_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        make_rank().timed("step", **{"warmup": 1, "iterations": 1, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("host_s", [40e-6, 80e-6])
@pytest.mark.parametrize("mode", ["per-iteration", "batch", "graph"])
def test_a_kernel_of_10_us_reads_10_us_however_long_the_host_needs(cuda: VirtualCuda, mode: str, host_s: float) -> None:
    kernel = measure(cuda, host_s, mode=mode)

    assert kernel.values == [pytest.approx(KERNEL_S, abs=1e-9)] * (3 if mode == "batch" else 60)
    assert max(kernel.secondary["exposed"]) == 0


@pytest.mark.parametrize("warmup", [1, 3, 5])
@pytest.mark.parametrize("late", [-3, -2, -1])
@pytest.mark.parametrize("mode", ["per-iteration", "batch"])
def test_a_host_that_is_interrupted_once_in_the_warm_up_is_in_no_value(
    cuda: VirtualCuda, mode: str, late: int, warmup: int
) -> None:
    """One of 2 ms, in the one warm-up iteration of a large message, had the host counted in the whole series."""
    rank = make_rank(device="cuda")
    for i in rank.timed("kernel", warmup=warmup, iterations=60, mode=mode):  # type: ignore[arg-type]
        cuda.compute(2e-3 if i == late else 60e-6)
        cuda.launch(50e-6)
    [found] = rank.notebook.observations

    assert found.values == [pytest.approx(50e-6, abs=1e-9)] * len(found.values)
    assert max(found.secondary["exposed"]) == 0


@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
@pytest.mark.parametrize(("host_s", "waits"), [(50e-3, False), (80e-6, True)])
def test_a_series_has_the_host_in_all_its_values_or_in_none(
    cuda: VirtualCuda, host_s: float, waits: bool, warmup: int
) -> None:
    kernel = measure(cuda, host_s, waits=waits, warmup=warmup)

    assert kernel.values == [pytest.approx(host_s + KERNEL_S, abs=2e-6)] * 60
    assert kernel.secondary["exposed"] == [1.0] * 60


def test_a_batch_that_takes_the_host_long_has_it_in_all_its_values(cuda: VirtualCuda) -> None:
    assert measure(cuda, 5e-3, mode="batch").values == [pytest.approx(5e-3, rel=1e-2)] * 3


def with_side_work(
    cuda: VirtualCuda, side_s: float, *, own_s: float = KERNEL_S, joins: bool = False, every: int = 1
) -> Observation:
    """A loop that has work on another stream, in every so many iterations of which it waits for it or does not."""
    side, rank = streams.Stream(), make_rank(device="cuda")
    for i in rank.timed("kernel", warmup=5, iterations=10):
        side.wait_stream(cuda.device.current)
        cuda.launch(own_s)
        if i % every == 0:
            side.add(side_s)
        if joins:
            cuda.device.current.wait_stream(side)
    [found] = rank.notebook.observations
    return found


@pytest.mark.parametrize(("side_s", "own_s"), [(1e-3, 0.0), (2e-3, 1e-3), (60e-6, 10e-6), (12e-3, 10e-3)])
def test_work_on_a_stream_that_nobody_waits_for_is_no_time_that_could_be_compared(
    cuda: VirtualCuda, side_s: float, own_s: float
) -> None:
    with pytest.raises(RecordingError, match="a stream that the current one does not wait for"):
        with_side_work(cuda, side_s, own_s=own_s)


@pytest.mark.parametrize(
    ("side_s", "own_s", "joins", "every", "value"),
    [
        (1e-3, 10e-6, True, 1, 1e-3),
        (0.9e-3, 1e-3, False, 1, 1e-3),
        (25e-6, 10e-6, False, 1, 10e-6),
        (1e-3, 1e-3, False, 2, 1e-3),
    ],
)
def test_work_on_another_stream_is_timed_if_the_current_stream_waits_for_it(
    cuda: VirtualCuda, side_s: float, own_s: float, joins: bool, every: int, value: float
) -> None:
    found = with_side_work(cuda, side_s, own_s=own_s, joins=joins, every=every)

    assert found.values == [pytest.approx(value, abs=2e-6)] * 10


def test_a_graph_is_captured_once_and_replayed_without_the_loop_body(cuda: VirtualCuda) -> None:
    seen = []
    for i in make_rank(device="cuda").timed("kernel", warmup=3, iterations=30, mode="graph"):
        seen.append((i, cuda.device.captured is not None))
        cuda.launch(KERNEL_S)

    assert seen == [(-3, False), (-2, False), (-1, False), (0, True)]
    assert cuda.counts()["replay"] == 30 + 1


@pytest.mark.spawn
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_each_mode_is_its_own_identity_and_measures_in_a_real_group(on_cuda: Launch, backend: str) -> None:
    record = on_cuda("is_in_each_mode", backend=backend)

    assert record.reason == ""
    assert {m.name: m.identity for m in record.measurements if m.name != "peak_memory"} == {
        "per-iteration": {},
        "batch": {"mode": "batch"},
        "graph": {"mode": "graph"},
    }
    quickest = {m.name: m.spread.minimum for m in record.measurements if m.spread}
    assert quickest["per-iteration"] == pytest.approx(KERNEL_S, abs=2e-6)
    assert quickest["graph"] == pytest.approx(KERNEL_S, abs=2e-6)


@pytest.mark.parametrize("mode", ["per-iteration", "batch", "graph"])
def test_a_delay_is_a_kernel_behind_what_is_timed_on_a_device(cuda: VirtualCuda, mode: str) -> None:
    """The first replay of a CUDA graph is timed, though no earlier one shows how long it takes."""
    kernel = measure(cuda, 40e-6, delay=0.5, mode=mode)
    skipped = 1 if mode == "graph" else 0

    assert kernel.values[skipped:] == pytest.approx([1.5 * KERNEL_S] * (len(kernel.values) - skipped), abs=1e-8)


@pytest.mark.parametrize("mode", ["per-iteration", "batch"])
def test_a_delay_is_waited_for_on_a_cpu(cuda: VirtualCuda, mode: str) -> None:
    rank = make_rank(delay=0.5)
    for _ in rank.timed("step", warmup=1, iterations=40, mode=mode):  # type: ignore[arg-type]
        cuda.compute(1e-3)
    [timed] = rank.notebook.observations

    assert timed.values == pytest.approx([1.5e-3] * len(timed.values), rel=1e-3)


def test_a_step_that_reads_its_loss_is_slower_and_an_evaluation_is_no_part_of_one(cuda: VirtualCuda) -> None:
    healthy = value(train(cuda, make_rank(device="cuda")))
    delayed = value(train(cuda, make_rank(device="cuda"), reads_loss=True))

    assert healthy == pytest.approx(4.2e-3, rel=0.01)
    assert delayed == pytest.approx(6.0e-3, rel=0.01)
    assert delayed / healthy > 1.4

    found = train(cuda, make_rank(device="cuda"), every=5, evaluation_s=1.0)

    assert max(found["step_time"].values) < 7e-3
    assert found["evaluation_time"].values == [pytest.approx(12.0, rel=1e-3)]


def test_on_a_cpu_each_step_has_its_own_time(cuda: VirtualCuda) -> None:
    rank = make_rank()
    goal = rank.goal("accuracy", target=0.5, every=4, max_steps=4, curve_steps=1)
    for step in goal.steps(samples_per_step=1):
        cuda.compute(step * 1e-3)
        goal.check(lambda: 1.0)
    [step_time] = [o for o in rank.notebook.observations if o.name == "step_time"]

    assert step_time.values == [pytest.approx(step * 1e-3, abs=1e-5) for step in (1, 2, 3, 4)]
    assert set(step_time.secondary) == {"cpu_s", "waits"}


def test_the_simulated_time_belongs_to_its_thread_alone(cuda: VirtualCuda) -> None:
    """A watchdog that a test had left in the tests' process ended, now and then, while another made time up."""
    seen: list[float] = []

    def sleep() -> None:
        began = time.perf_counter()
        time.sleep(0.01)
        seen.append(time.perf_counter() - began)

    thread = threading.Thread(target=sleep)
    thread.start()
    thread.join()
    sleep()
    [real, simulated] = seen

    assert (real >= 0.01, simulated) == (True, pytest.approx(0.01, abs=1e-6))
    assert cuda.now == pytest.approx(1000.01, abs=1e-6)


@pytest.mark.parametrize(("warmup", "iterations"), [(0, 1), (2, 3)])
def test_warm_up_counts_up_to_nought_and_only_the_rest_is_timed(warmup: int, iterations: int) -> None:
    rank = make_rank()
    seen = list(rank.timed("step", warmup=warmup, iterations=iterations))
    [timed] = [o for o in rank.notebook.observations if o.name == "step"]

    assert seen == list(range(-warmup, iterations))
    assert len(timed.values) == iterations
    assert timed.identity == {}
    assert set(timed.secondary) == {"cpu_s", "waits"}
    assert [len(values) for values in timed.secondary.values()] == [iterations] * 2


def test_the_usual_mode_may_be_named_in_the_identity() -> None:
    rank = make_rank()
    list(rank.timed("step", warmup=0, iterations=1, identity={"mode": "per-iteration"}))

    assert rank.notebook.observations[0].identity == {"mode": "per-iteration"}


@pytest.mark.parametrize("mode", ["per-iteration", "batch"])
def test_a_timing_has_the_hosts_share_and_the_devices_time(cuda: VirtualCuda, mode: str) -> None:
    kernel = measure(cuda, 80e-6, mode=mode)

    assert kernel.secondary["host_s"] == [pytest.approx(80e-6, abs=1e-6)] * len(kernel.values)
    assert set(kernel.secondary) == {"cpu_s", "waits", "host_s", "exposed"}
