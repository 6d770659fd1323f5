"""The rate of a training and what stands beside it, by a clock and loads that are made up."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.metric import TOLD
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads import input_rate
from pytest_distbench.workloads.input_rate import record_input_rate
from pytest_distbench.workloads.inputs import Batches


class Clock:
    """Steps of 0.5 s on four CPUs, two of them busy."""

    def __init__(self, rank: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10.0
        self.steps = 0
        batch = torch.zeros(8, 1), torch.zeros(8)
        self.inputs = Batches(itertools.repeat(batch), batch=8, identity={"data": "generated"}, facts={}, ahead=2)
        monkeypatch.setattr(rank, "own_clock", lambda: self.now)
        monkeypatch.setattr(input_rate, "usable_cpus", lambda: frozenset(range(4)))
        monkeypatch.setattr(input_rate, "busy_s", lambda cpus: (2 * self.now, 0.0))

    def step(self) -> None:
        self.steps += 1
        self.now += 0.5
        self.inputs.waited_s += 0.2


def test_the_rate_is_of_steps_in_one_breath_after_what_lay_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    clock = Clock(rank, monkeypatch)
    record_input_rate(rank, clock.inputs, clock.step, steps=10)
    found = {o.name: o for o in rank.notebook.observations}

    assert clock.steps == 12
    assert {name: o.values for name, o in found.items()} == {
        "samples_per_second": [pytest.approx(16)],
        "samples_per_step": [8],
        "load_share": [pytest.approx(0.4)],
        "cpu_utilisation": [pytest.approx(0.5)],
    }
    assert {name: o.better for name, o in found.items()} == {
        "samples_per_second": "higher", "samples_per_step": "exact", "load_share": "info", "cpu_utilisation": "info",
    }  # fmt: skip
    assert {o.identity["data"] for o in found.values()} == {"generated"}
    assert found["samples_per_second"].bounds == []
    facts = found["samples_per_second"].facts
    assert (facts["loop"], facts["communication"], facts["ranks_per_node"]) == ("step", "on", 1)


def test_what_is_expected_is_a_bound_that_is_told_with_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    clock = Clock(rank, monkeypatch)
    record_input_rate(rank, clock.inputs, clock.step, steps=10, expected="220 samples/s")
    found = rank.notebook.observations[0]

    assert [(bound.side, bound.value) for bound in found.bounds] == [("least", 220)]
    assert found.facts[TOLD] == "a rank waited for its input 40% of the time; the CPUs were 50% busy"


@pytest.mark.parametrize(
    ("told", "recorded", "words"),
    [(83, [0.83], "CPUs were 50% busy, the GPU of rank 0 83%"), (None, [], "CPUs were 50% busy")],
)
def test_a_gpu_tells_how_busy_it_was_or_nothing(
    monkeypatch: pytest.MonkeyPatch, told: int | None, recorded: list[float], words: str
) -> None:
    def utilization(device: torch.device) -> int:
        if told is None:
            raise ModuleNotFoundError("pynvml does not seem to be installed")
        return told

    rank = make_rank()
    clock = Clock(rank, monkeypatch)
    rank.device = torch.device("cuda", 0)
    monkeypatch.setattr(rank, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    record_input_rate(rank, clock.inputs, clock.step, steps=1)

    assert [v for o in rank.notebook.observations if o.name == "gpu_utilisation" for v in o.values] == recorded
    assert str(rank.notebook.observations[0].facts[TOLD]).endswith(words)


@pytest.mark.parametrize(
    ("wrong", "message"), [({"steps": 0}, "steps"), ({"inputs": iter([])}, r"inputs to be what batches\(...\) gives")]
)
def test_what_is_no_input_or_no_step_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, object], message: str
) -> None:
    rank = make_rank()
    clock = Clock(rank, monkeypatch)
    with pytest.raises(RecordingError, match=rf"record_input_rate.*{message}"):
        record_input_rate(rank, **{"inputs": clock.inputs, "step": clock.step, "steps": 1, **wrong})  # type: ignore[arg-type]
