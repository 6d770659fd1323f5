"""The clock of a training loop: each step on a CPU, blocks of steps on a device that is made up."""

from __future__ import annotations

import itertools

import pytest
from support.ranks import make_rank
from support.virtual_cuda import VirtualCuda

from pytest_distbench.records.kinds import FAST_SIDE
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.quantiles import quantile
from pytest_distbench.worker.context import RankContext

HOST_S, DEVICE_S = 2e-3, 4e-3


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> VirtualCuda:
    return VirtualCuda(monkeypatch)


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
    return quantile(found["step_time"].values, FAST_SIDE)


def test_a_step_that_reads_its_loss_is_a_slower_step(cuda: VirtualCuda) -> None:
    healthy = value(train(cuda, make_rank(device="cuda")))
    planted = value(train(cuda, make_rank(device="cuda"), reads_loss=True))

    assert healthy == pytest.approx(4.2e-3, rel=0.01)
    assert planted == pytest.approx(6.0e-3, rel=0.01)
    assert planted / healthy > 1.4


def test_the_device_is_waited_for_once_a_block(cuda: VirtualCuda) -> None:
    times = train(cuda, make_rank(device="cuda"))["step_time"].values
    waits = cuda.counts()["synchronize"]

    assert len(times) == 60
    assert waits == 3 + 6 + 1 + 2  # the first three steps, blocks of ten, the last; before and after the evaluation
    assert times[10:20] == [times[10]] * 10


def test_an_evaluation_is_no_part_of_a_step(cuda: VirtualCuda) -> None:
    found = train(cuda, make_rank(device="cuda"), every=5, evaluation_s=1.0)

    assert max(found["step_time"].values) < 7e-3
    assert found["evaluation_time"].values == [pytest.approx(12.0, rel=1e-3)]


@pytest.mark.parametrize(
    ("options", "host_s", "lead_s"),
    [({}, HOST_S, 4e-3), ({"host_s": 6e-3}, 6e-3, DEVICE_S), ({"reads_loss": True}, HOST_S + DEVICE_S, 0.0)],
)
def test_the_hosts_share_and_its_lead_stand_beside(
    cuda: VirtualCuda, options: dict[str, object], host_s: float, lead_s: float
) -> None:
    step_time = train(cuda, make_rank(device="cuda"), **options)["step_time"]  # type: ignore[arg-type]

    assert set(step_time.companions) == {"cpu_s", "waits", "host_s", "lead_s"}
    assert {len(values) for values in step_time.companions.values()} == {60}
    assert quantile(step_time.companions["host_s"], 0.5) == pytest.approx(host_s, rel=0.01)
    assert min(step_time.companions["lead_s"]) == pytest.approx(lead_s, abs=1e-5)


def test_a_host_that_is_ahead_gets_further_ahead_with_every_step_of_a_block(cuda: VirtualCuda) -> None:
    lead_s = train(cuda, make_rank(device="cuda"))["step_time"].companions["lead_s"]

    assert [b - a for a, b in itertools.pairwise(lead_s[9:19])] == [pytest.approx(2e-3, rel=0.01)] * 9


def test_on_a_cpu_each_step_has_its_own_time(cuda: VirtualCuda) -> None:
    rank = make_rank()
    goal = rank.goal("accuracy", target=0.5, every=4, max_steps=4, curve_steps=1)
    for step in goal.steps(samples_per_step=1):
        cuda.compute(step * 1e-3)
        goal.check(lambda: 1.0)
    [step_time] = [o for o in rank.notebook.observations if o.name == "step_time"]

    assert step_time.values == [pytest.approx(step * 1e-3, abs=1e-5) for step in (1, 2, 3, 4)]
    assert set(step_time.companions) == {"cpu_s", "waits"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_delay_makes_all_clocks_of_a_training_longer_by_its_share(cuda: VirtualCuda, device: str) -> None:
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
