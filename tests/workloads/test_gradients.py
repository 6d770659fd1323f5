"""How gradients are sent: in few tensors or in many, overlapped with computing, compressed, after the backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.launching import Launch
from support.ranks import make_rank
from support.releases import refuses_bf16

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads import gradients
from pytest_distbench.workloads.gradients import CALLS, parallel, tensor_lengths
from pytest_distbench.workloads.rates import record_rate


@pytest.mark.parametrize(
    ("elements", "tensors", "aligned", "lengths"),
    [
        (10, 3, 1, [4, 3, 3]),
        (10, 1, 4, [10]),
        (40, 3, 4, [16, 12, 12]),
        (42, 3, 4, [16, 12, 14]),
        (10, 4, 4, [3, 3, 2, 2]),
        (5, 5, 4, [1, 1, 1, 1, 1]),
    ],
)
def test_tensors_are_as_equal_as_they_can_be_and_aligned_where_they_can(
    elements: int, tensors: int, aligned: int, lengths: list[int]
) -> None:
    assert tensor_lengths(elements, tensors, aligned=aligned) == lengths


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_each_way_sends_the_same_bytes_by_as_many_calls_as_it_says(launcher: Launcher, tmp_path: Path) -> None:
    launch = Launch(launcher, tmp_path, Path(gradients.__file__))
    params = {
        "message_bytes": 4000, "dtype": "float32", "tensors": [1, 7], "calls": list(CALLS), "iterations": 2,
        "warmup": 1,
    }  # fmt: skip
    record = launch("bucket_sweep", params=params)

    assert (record.outcome, record.reason) == ("passed", "")
    assert [m.key for m in record.measurements if m.name == "latency"] == [
        f"latency[calls={calls},tensors={tensors}]" for tensors in (1, 7) for calls in CALLS
    ]
    sent = {calls: record.fingerprints[f"latency[calls={calls},tensors=7]"].collectives["all"] for calls in CALLS}
    assert {calls: sum(row.count for row in rows) for calls, rows in sent.items()} == {
        "each": 7,
        "coalesced": 1,
        "flattened": 1,
    }
    assert {sum(row.count * row.message_bytes for row in rows) for rows in sent.values()} == {4000}


WIDTH, LAYERS = 64, 2
GRADIENT_BYTES = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)


class Train:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __call__(self, hook: str, width: int = WIDTH) -> LaunchRecord:
        params = {
            "hook": hook, "width": width, "layers": LAYERS, "batch": 8, "approximation_rank": 4, "iterations": 2,
            "warmup": 1,
        }  # fmt: skip
        return self._launch("compressed_training", params=params)


@pytest.fixture
def train(launcher: Launcher, tmp_path: Path) -> Train:
    return Train(Launch(launcher, tmp_path, Path(gradients.__file__)))


def values(record: LaunchRecord) -> dict[str, float | None]:
    assert (record.outcome, record.reason) == ("passed", "")
    return {m.name: m.value for m in record.measurements}


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_less_is_sent_and_the_gradient_is_less_exact(train: Train) -> None:
    none, half, low_rank = (values(train(hook)) for hook in ("none", "fp16", "powersgd"))

    assert "gradient_error" not in none
    assert 0 < (half["gradient_error"] or 0.0) < 2**-8 < (low_rank["gradient_error"] or 0.0) < 1
    assert none["gradient_bytes"] == GRADIENT_BYTES
    assert half["gradient_bytes"] == GRADIENT_BYTES / 2
    assert 0 < (low_rank["gradient_bytes"] or 0.0) < GRADIENT_BYTES / 4


@pytest.mark.spawn
@refuses_bf16
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_what_torch_refuses_here_is_skipped_with_its_reason(train: Train) -> None:
    record = train("bf16")

    assert record.outcome == "skipped"
    assert record.reason.startswith("bf16: BF16 all reduce communication hook required CUDA")


@pytest.mark.parametrize(
    ("communication_s", "compute_s", "both_s", "fraction"),
    [
        (2.0, 3.0, 3.0, 1.0),  # hidden whole
        (2.0, 3.0, 5.0, 0.0),  # one after the other
        (2.0, 3.0, 4.0, 0.5),
        (3.0, 2.0, 4.0, 0.5),  # the shorter of the two counts
        (2.0, 3.0, 6.0, 0.0),  # they hinder each other
        (2.0, 3.0, 2.5, 1.0),  # noise
    ],
)
def test_the_fraction_is_that_of_imb_nbc(
    communication_s: float, compute_s: float, both_s: float, fraction: float
) -> None:
    assert gradients.overlap_fraction(communication_s, compute_s, both_s) == fraction


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_overlap_records_three_timings_and_what_follows_from_them(launcher: Launcher, tmp_path: Path) -> None:
    launch = Launch(launcher, tmp_path, Path(gradients.__file__))
    params = {
        "message_bytes": 4096, "dtype": "bfloat16", "matrix": 16, "multiplications": 2, "iterations": 5, "warmup": 1,
    }  # fmt: skip
    record = launch("overlap", params=params)

    assert (record.outcome, record.reason) == ("passed", "")
    found = {m.name: m for m in record.measurements}
    assert list(found) == ["communication_time", "compute_time", "both_time", "exposed_time", "overlap", "peak_memory"]
    judged = ["communication_time", "compute_time", "both_time", "peak_memory"]
    assert [m.name for m in record.measurements if m.is_judged] == judged
    assert 0 <= (found["overlap"].value or 0.0) <= 1
    assert {m.identity["matrix"] for m in record.measurements if m.name != "peak_memory"} == {16}


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_power_sgd_on_several_buckets_is_skipped_on_gloo_where_it_may_wait_for_ever(train: Train) -> None:
    record = train("powersgd", width=512)

    assert record.outcome == "skipped"
    assert "on several buckets for ever" in record.reason


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"communication": "of"}, "communication='of'; wanted one of on, off"),
        ({"overlap": "of"}, "overlap='of'; wanted on or off"),
        ({"communication": "off", "compression": "zip"}, "compression='zip'; wanted one of none, fp16, bf16"),
        ({"communication": "off", "compression": "powersgd"}, "compression='powersgd'; wanted one of none, fp16, bf16"),
    ],
)
def test_other_parameters_of_a_training_are_refused(params: dict[str, str], message: str) -> None:
    rank = make_rank()
    rank.params = params
    with pytest.raises(RecordingError, match=message):
        parallel(rank, torch.nn.Linear(2, 2))


def test_a_model_without_communication_is_left_as_it_is() -> None:
    rank, model = make_rank(), torch.nn.Linear(2, 2)
    rank.params = {"communication": "off"}

    assert parallel(rank, model) is model


def train_in_parallel(rank: RankContext) -> None:
    """Runs in every rank: a linear layer whose gradients are sent as the parameters say."""
    model = parallel(rank, torch.nn.Linear(8, 8))
    for _ in rank.timed("step", warmup=3, iterations=2):  # the second step makes DDP's final buckets
        model(torch.ones(2, 8)).sum().backward()
    record_rate(rank, samples=2)


def launched(launcher: Launcher, folder: Path, **params: object) -> LaunchRecord:
    return Launch(launcher, folder, Path(__file__))("train_in_parallel", params=params)


@pytest.mark.spawn
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
        gradients.average_gradients(rank, net)
    found = [p.grad for p in net.parameters() if p.grad is not None]
    rank.record("gradient", float(sum(gradient.sum() for gradient in found)), reduce="max")
    rank.record("least_gradient", float(sum(gradient.sum() for gradient in found)), reduce="min")


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_gradients_behind_the_backward_pass_are_those_of_ddp_in_one_all_reduce(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Its phases are there; without communication nothing is sent, and ranks keep their own gradients."""
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
