"""What trainings of a scaling test share: the rate by tf_cnn_benchmarks' definitions, and the model in parallel."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from support.launching import Launch
from support.ranks import make_rank
from support.releases import needs_recorder, refuses_bf16

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.launch import LaunchRecord, RankReport
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.scaling import average_gradients, parallel, rate_of, record_rate


def test_the_rate_has_the_spread_of_its_steps_and_adds_up_over_ranks() -> None:
    found = rate_of(8, [0.1, 0.1, 0.2, 0.4])  # 80, 80, 40 and 20 samples a second
    assert found.mean == pytest.approx(8 / 0.2)
    assert found.uncertainty == pytest.approx(statistics.pstdev([80, 80, 40, 20]) / 2)
    assert found.jitter == pytest.approx(1.4826 * 20)

    assert rate_of(4, [0.5, 0.5]) == (8.0, 0.0, 0.0)

    assert rate_of(4, [0.5]) == (8.0, None, None)

    step, samples, rate, *spreads = rated(8).observations
    assert (samples.name, samples.values) == ("samples_per_step", [8])
    assert rate.values == [pytest.approx(8 / statistics.fmean(step.values))]
    assert rate.facts == {"loop": "step", "communication": "on", "ranks_per_node": 4}
    assert [o.name for o in spreads] == ["samples_per_second_uncertainty", "samples_per_second_jitter"]

    reports = [rated(8), rated(2, 1)]
    found = {m.name: m for m in merge(recorded(reports))}
    rates = [report.observations[2].values[0] for report in reports]
    assert (found["samples_per_step"].value, found["samples_per_step"].better) == (10, "exact")
    assert found["samples_per_second"].value == pytest.approx(sum(rates))

    rank, model = make_rank(), torch.nn.Linear(2, 2)
    rank.params = {"communication": "off"}
    assert parallel(rank, model) is model


def rated(samples: int, rank_number: int = 0) -> RankReport:
    rank = make_rank()
    rank.world_size = 4
    for _ in rank.timed("step", warmup=1, iterations=3):
        pass
    record_rate(rank, samples=samples)
    observations = rank.notebook.observations
    return RankReport(rank=rank_number, outcome="passed", phase="body", phases={}, observations=observations)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"samples": 8}, r"no loop 'step' was timed before; wanted rank.timed\('step', ...\)"),
        ({"samples": 0}, "samples=0; wanted a whole number of at least 1"),
        ({"samples": 8, "of": "peak_memory"}, "the plugin itself records something of that name"),
    ],
)
def test_a_rate_of_nothing_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        record_rate(make_rank(), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"communication": "of"}, "communication='of'; wanted one of on, off"),
        ({"overlap": "of"}, "overlap='of'; wanted on or off"),
        ({"communication": "off", "compression": "zip"}, "compression='zip'; wanted one of none, fp16, bf16"),
        ({"communication": "off", "compression": "powersgd"}, "compression='powersgd'; wanted one of none, fp16, bf16"),
    ],
)
def test_other_parameters_are_refused(params: dict[str, str], message: str) -> None:
    rank = make_rank()
    rank.params = params
    with pytest.raises(RecordingError, match=message):
        parallel(rank, torch.nn.Linear(2, 2))


def train(rank: RankContext) -> None:
    """Runs in every rank: a linear layer whose gradients are sent as the parameters say."""
    model = parallel(rank, torch.nn.Linear(8, 8))
    for _ in rank.timed("step", warmup=3, iterations=2):  # the second step makes DDP's final buckets
        model(torch.ones(2, 8)).sum().backward()
    record_rate(rank, samples=2)


def launched(launcher: Launcher, folder: Path, **params: object) -> LaunchRecord:
    return Launch(launcher, folder, Path(__file__))("train", params=params)


@pytest.mark.spawn
@needs_recorder
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_gradients_are_sent_in_half_precision_or_not_at_all(launcher: Launcher, tmp_path: Path) -> None:
    """A fingerprint has what is sent: compression that is silently off is another one."""
    half, nothing = (
        launched(launcher, tmp_path, communication=how, compression="fp16").fingerprints["step"].collectives
        for how in ("on", "off")
    )

    assert [(row.op, row.dtype, row.message_bytes) for row in half["all"]] == [("all_reduce", "float16", 2 * 72)]
    assert not any(nothing.values())


@pytest.mark.spawn
@refuses_bf16
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_a_compression_that_torch_refuses_here_is_skipped_with_its_reason(launcher: Launcher, tmp_path: Path) -> None:
    record = launched(launcher, tmp_path, compression="bf16")

    assert (record.outcome, record.reason[:6]) == ("skipped", "bf16: ")


def train_behind(rank: RankContext) -> None:
    """Runs in every rank: gradients of inputs of its own, which are averaged as the parameters say."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2, bias=False))
    net[0].bias.requires_grad_(requires_grad=False)
    model = parallel(rank, net)
    for _ in rank.timed("step", warmup=3, iterations=2):
        model.zero_grad()
        model(torch.full((2, 3), rank.rank + 1.0)).square().sum().backward()
        average_gradients(rank, net)
    found = [p.grad for p in net.parameters() if p.grad is not None]
    rank.record("gradient", float(sum(gradient.sum() for gradient in found)), reduce="max")
    rank.record("least_gradient", float(sum(gradient.sum() for gradient in found)), reduce="min")


@pytest.mark.spawn
@needs_recorder
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_gradients_behind_the_backward_pass_are_those_of_ddp_in_one_all_reduce(
    launcher: Launcher, tmp_path: Path
) -> None:
    """With its phases; without communication nothing is sent, and ranks keep their own."""
    ways = {"ddp": {}, "behind": {"overlap": "off"}, "silent": {"overlap": "off", "communication": "off"}}
    made = {
        way: Launch(launcher, tmp_path, Path(__file__))("train_behind", params=params) for way, params in ways.items()
    }
    value = {way: {m.name: m.value for m in record.measurements} for way, record in made.items()}

    assert {record.reason for record in made.values()} == {""}
    assert value["behind"]["gradient"] == pytest.approx(value["ddp"]["gradient"])
    assert value["behind"]["least_gradient"] == value["behind"]["gradient"]
    assert value["silent"]["least_gradient"] != value["silent"]["gradient"]
    assert [c.op for c in made["behind"].fingerprints["step"].collectives["all"]] == ["all_reduce"]
    assert not any(made["silent"].fingerprints["step"].collectives.values())
    assert [part.path for part in made["behind"].breakdowns["step"].parts] == [["all_reduce"], ["all_reduce", "copy"]]
