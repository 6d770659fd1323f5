"""The rate of a training: samples with the spread of tf_cnn_benchmarks, tokens, model FLOPS, and what held it up."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.metric import SAID
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads import rates
from pytest_distbench.workloads.inputs import Batches
from pytest_distbench.workloads.rates import peak_flops, record_input_rate, record_rate, record_throughput


def test_the_rate_has_the_spread_of_its_steps_and_adds_up_over_ranks() -> None:
    mean, uncertainty, jitter = rates.rate_of(8, [0.1, 0.1, 0.2, 0.4])  # 80, 80, 40 and 20 samples a second
    assert mean == pytest.approx(8 / 0.2)
    assert uncertainty == pytest.approx(statistics.pstdev([80, 80, 40, 20]) / 2)
    assert jitter == pytest.approx(1.4826 * 20)

    assert rates.rate_of(4, [0.5, 0.5]) == (8.0, 0.0, 0.0)

    assert rates.rate_of(4, [0.5]) == (8.0, None, None)

    step, samples, rate, *spreads = rated(8).observations
    assert (samples.name, samples.values) == ("samples_per_step", [8])
    assert rate.values == [pytest.approx(8 / statistics.fmean(step.values))]
    assert rate.facts == {"loop": "step", "communication": "on", "ranks_per_node": 4}
    assert [o.name for o in spreads] == ["samples_per_second_uncertainty", "samples_per_second_jitter"]

    reports = [rated(8), rated(2, 1)]
    found = {m.name: m for m in merge(recorded(reports))}
    each = [report.observations[2].values[0] for report in reports]
    assert (found["samples_per_step"].value, found["samples_per_step"].better) == (10, "exact")
    assert found["samples_per_second"].value == pytest.approx(sum(each))


def rated(samples: int, rank_number: int = 0) -> RankReport:
    rank = make_rank()
    rank.world_size = 4
    for _ in rank.timed("step", warmup=1, iterations=3):
        pass
    record_rate(rank, samples=samples)
    observations = rank.notebook.observations
    return RankReport(rank=rank_number, outcome="passed", phase="body", phases={}, observations=observations)


class SimulatedTime:
    """Steps of 0.5 s on four CPUs, two of them busy."""

    def __init__(self, rank: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10.0
        self.steps = 0
        batch = torch.zeros(8, 1), torch.zeros(8)
        self.inputs = Batches(itertools.repeat(batch), batch=8, identity={"data": "generated"}, facts={}, ahead=2)
        monkeypatch.setattr(rank, "own_clock", lambda: self.now)
        monkeypatch.setattr(rates, "usable_cpus", lambda: frozenset(range(4)))
        monkeypatch.setattr(rates, "busy_s", lambda cpus: (2 * self.now, 0.0))

    def step(self) -> None:
        self.steps += 1
        self.now += 0.5
        self.inputs.waited_s += 0.2


def test_the_rate_is_of_steps_in_one_breath_after_what_lay_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    clock = SimulatedTime(rank, monkeypatch)
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


@pytest.mark.parametrize(
    ("told", "recorded", "words"),
    [(83, [0.83], "CPUs were 50% busy, the GPU of rank 0 83%"), (None, [], "CPUs were 50% busy")],
)
def test_the_utilisation_of_a_gpu_is_recorded_if_reported(
    monkeypatch: pytest.MonkeyPatch, told: int | None, recorded: list[float], words: str
) -> None:
    def utilization(device: torch.device) -> int:
        if told is None:
            raise ModuleNotFoundError("pynvml does not seem to be installed")
        return told

    rank = make_rank()
    clock = SimulatedTime(rank, monkeypatch)
    rank.device = torch.device("cuda", 0)
    monkeypatch.setattr(rank, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    record_input_rate(rank, clock.inputs, clock.step, steps=1)

    assert [v for o in rank.notebook.observations if o.name == "gpu_utilisation" for v in o.values] == recorded
    assert str(rank.notebook.observations[0].facts[SAID]).endswith(words)


@pytest.mark.parametrize(
    ("wrong", "message"), [({"steps": 0}, "steps"), ({"inputs": iter([])}, r"inputs to be what batches\(...\) gives")]
)
def test_what_is_no_input_or_no_step_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, object], message: str
) -> None:
    rank = make_rank()
    clock = SimulatedTime(rank, monkeypatch)
    with pytest.raises(RecordingError, match=rf"record_input_rate.*{message}"):
        record_input_rate(rank, **{"inputs": clock.inputs, "step": clock.step, "steps": 1, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA A100-PCIE-80GB", 312),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("Tesla V100-SXM2-32GB", 125),
    ],
)
def test_the_peak_of_a_product_is_found_by_the_name_that_the_driver_gives(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


def test_rates_are_judged_and_so_is_their_share_of_a_known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({pattern for pattern, _ in rates.PEAKS}) == len(rates.PEAKS)

    # PaLM 540B: 118 layers, width 48 heads * 256, sequences of 2048: appendix B's formula by hand
    told = rates.transformer_flops_per_token(540_350_000_000, layers=118, width=48 * 256, sequence=2048)
    assert told == pytest.approx(6 * 540.35e9 + 12 * 118 * 12288 * 2048)

    rank = make_rank()
    record_throughput(rank, tokens=3000.0, seconds=2.0, flops_per_token=2e9, peak=6e12)
    found = {o.name: o for o in rank.notebook.observations}
    assert found["tokens_per_second"].values == [1500.0]
    assert found["mfu"].values == [pytest.approx(0.5)]
    assert {o.better for o in found.values()} == {"higher"}

    rank = make_rank()
    record_throughput(rank, tokens=3000.0, seconds=2.0, flops_per_token=2e9)
    assert [o.name for o in rank.notebook.observations] == ["tokens_per_second"]

    rank = make_rank()
    rank.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    record_throughput(rank, tokens=312.0, seconds=1.0, flops_per_token=0.5e12)
    assert rank.notebook.observations[1].values == [pytest.approx(0.5)]

    with pytest.raises(RecordingError, match=r"an mfu of 2.02e\+11.*peak= is in FLOP/s \(989e12 for 989 TFLOP/s\)"):
        record_throughput(make_rank(), tokens=1000.0, seconds=1.0, flops_per_token=2e11, peak=989)


WITHOUT_A_PEAK = [
    "NVIDIA GeForce GTX 1080",
    "A1000",
    "AL4",
    "",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA A100-SXM-64GB",
]
NO_RATES = {"tokens": 0, "seconds": -1.0, "flops_per_token": float("nan")}


@pytest.mark.parametrize(
    ("record", "given", "message"),
    [
        (record_rate, {"samples": 8}, r"no loop 'step' was timed before; wanted rank.timed\('step', ...\)"),
        (record_rate, {"samples": 0}, "samples=0; wanted a whole number of at least 1"),
        (record_rate, {"samples": 8, "of": "peak_memory"}, "the plugin itself records a metric of that name"),
        *(
            (record_throughput, {"tokens": 1.0, "seconds": 1.0, "peak": 1.0, name: wrong}, f"record_throughput.*{name}")
            for name, wrong in NO_RATES.items()
        ),
        *((lambda rank, name: peak_flops(name), {"name": name}, "give peak=") for name in WITHOUT_A_PEAK),
    ],
)
def test_what_is_no_rate_is_refused_and_no_peak_guessed(
    record: Callable[..., object], given: dict[str, object], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        record(make_rank(), **given)


def test_an_expected_rate_is_a_bound_reported_with_the_wait_for_input(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    clock = SimulatedTime(rank, monkeypatch)
    record_input_rate(rank, clock.inputs, clock.step, steps=10, expected="220 samples/s")
    found = rank.notebook.observations[0]

    assert [(bound.side, bound.value) for bound in found.bounds] == [("least", 220)]
    assert found.facts[SAID] == "a rank waited for its input 40% of the time; the CPUs were 50% busy"
