"""Rates of steps, and models with and without communication."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.launching import Launch
from support.ranks import make_rank
from support.releases import RECORDS

from pytest_distbench.errors import ConfigurationError, RecordingError
from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.meter import Meter
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.scaling import batch_of, has_communication, parallel, rate_of, record_rate

PARAMETERS = 8 * 8 + 8


def train(rank: RankContext) -> None:
    """Runs in every rank: a linear layer, whose gradients are sent or not."""
    model = parallel(rank, torch.nn.Linear(8, 8), compression=rank.params["compression"])
    inputs = torch.ones(batch_of(rank), 8)
    for _ in rank.timed("step", warmup=3, iterations=4):  # the second step makes DDP's final buckets
        model.zero_grad()
        model(inputs).sum().backward()
    record_rate(rank, samples=batch_of(rank) * rank.world_size)


def test_a_rate_is_that_of_tf_cnn_benchmarks() -> None:
    """By hand: speeds 8, 4, 2, 4 of times 1, 2, 4, 2; their mean 4.5, deviations 3.5, 0.5, 2.5, 0.5."""
    rate = rate_of(8.0, [1.0, 2.0, 4.0, 2.0])

    assert rate.mean == pytest.approx(8 / 2.25)
    assert rate.uncertainty == pytest.approx(math.sqrt((3.5**2 + 0.5**2 + 2.5**2 + 0.5**2) / 4) / 2)
    assert rate.jitter == pytest.approx(1.4826 * 1.0)  # distances from the median 4: 4, 0, 2, 0


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> RankContext:
    """One rank that has run a loop of four steps, of 1, 2, 4 and 2 seconds."""
    made = make_rank()
    monkeypatch.setattr(made, "max_over_ranks", list)
    meter = Meter(Delay(0.0, lambda: 0.0))
    for _ in range(4):
        meter.start()
        meter.stop()
    made.record_times("step", [1.0, 2.0, 4.0, 2.0], meter)
    return made


def test_the_judged_rate_is_a_series_of_all_steps(rank: RankContext) -> None:
    record_rate(rank, samples=8)

    found = {o.name: o for o in rank.notebook.observations}
    assert found["samples_per_second"].values == [8.0, 4.0, 2.0, 4.0]
    assert (found["samples_per_second"].better, found["samples_per_second"].unit) == ("higher", "samples/s")
    assert found["samples_per_second_mean"].values == [pytest.approx(8 / 2.25)]
    assert found["samples_per_second"].facts == {
        "nodes": 1, "ranks_per_node": 1, "threads": torch.get_num_threads(),
    }  # fmt: skip


def test_a_loop_that_is_not_there_is_told_with_those_that_are(rank: RankContext) -> None:
    with pytest.raises(RecordingError, match=r"no loop 'epoch' of rank.timed has ended; there are step"):
        record_rate(rank, samples=8, loop="epoch")


@pytest.mark.parametrize("samples", [0, -1, float("nan"), "8"])
def test_samples_that_cannot_be_are_refused(rank: RankContext, samples: float) -> None:
    with pytest.raises(RecordingError, match=r"record_rate.*samples"):
        record_rate(rank, samples=samples)


def with_params(**params: object) -> RankContext:
    made = make_rank()
    made.params = params
    return made


def test_communication_is_on_or_off_and_nothing_else() -> None:
    assert has_communication(with_params())
    assert not has_communication(with_params(communication="off"))
    with pytest.raises(RecordingError, match=r"communication to be 'on' or 'off'.*False"):
        has_communication(with_params(communication=False))


def test_without_communication_the_model_stays_as_it_is() -> None:
    model = torch.nn.Linear(2, 2)

    assert parallel(with_params(communication="off"), model, compression="fp16") is model


def test_what_is_no_compression_is_refused_also_without_communication() -> None:
    alone = with_params(communication="off")
    with pytest.raises(ConfigurationError, match="unknown hook 'gzip'"):
        parallel(alone, torch.nn.Linear(2, 2), compression="gzip")
    with pytest.raises(RecordingError, match=r"hook without settings.*powersgd"):
        parallel(alone, torch.nn.Linear(2, 2), compression="powersgd")


@pytest.mark.parametrize("batch", [None, 0, 1.5])
def test_a_batch_is_a_whole_number(batch: object) -> None:
    with pytest.raises(RecordingError, match=r"rank.params.*batch"):
        batch_of(with_params(batch=batch))


def values(record: LaunchRecord) -> dict[str, float | None]:
    assert (record.outcome, record.reason) == ("passed", "")
    return {m.name: m.value for m in record.measurements}


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_what_is_sent_is_half_under_compression_and_nothing_without_communication(
    launcher: Launcher, tmp_path: Path
) -> None:
    launch = Launch(launcher, tmp_path, Path(__file__))
    plain, half, alone = (
        values(launch("train", params={"batch": 2, "communication": communication, "compression": compression}))
        for communication, compression in [("on", "none"), ("on", "fp16"), ("off", "none")]
    )

    assert plain["samples_per_second"]
    if RECORDS:
        assert (plain["collectives"], plain["sent_bytes"]) == (1, 4 * PARAMETERS)
        assert (half["collectives"], half["sent_bytes"]) == (1, 2 * PARAMETERS)
        assert (alone["collectives"], alone["sent_bytes"]) == (0, 0)
