"""What trainings of a scaling test share: the rate by tf_cnn_benchmarks' definitions, and the model in parallel."""

from __future__ import annotations

import statistics

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import ConfigurationError, RecordingError
from pytest_distbench.workloads.scaling import parallel, rate_of, record_rate


def test_the_rate_has_the_spread_of_its_steps() -> None:
    found = rate_of(8, [0.1, 0.1, 0.2, 0.4])  # 80, 80, 40 and 20 samples a second

    assert found.mean == pytest.approx(8 / 0.2)
    assert found.uncertainty == pytest.approx(statistics.pstdev([80, 80, 40, 20]) / 2)
    assert found.jitter == pytest.approx(1.4826 * 20)


def test_equal_steps_have_no_spread() -> None:
    assert rate_of(4, [0.5, 0.5]) == (8.0, 0.0, 0.0)


def test_the_rate_is_of_all_ranks_and_names_its_loop() -> None:
    rank = make_rank()
    for _ in rank.timed("step", warmup=1, iterations=3):
        pass
    rank.world_size = 4
    [step] = rank.notebook.observations
    record_rate(rank, samples=8)
    rate = rank.notebook.observations[1]

    assert rate.values == [pytest.approx(32 / statistics.fmean(step.values))]
    assert rate.facts == {"loop": "step", "samples": 8, "communication": "on"}
    assert [o.name for o in rank.notebook.observations[1:]] == [
        "samples_per_second", "samples_per_second_uncertainty", "samples_per_second_jitter",
    ]  # fmt: skip


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


def test_without_communication_a_model_stays_as_it_is() -> None:
    rank, model = make_rank(), torch.nn.Linear(2, 2)
    rank.params = {"communication": "off"}

    assert parallel(rank, model) is model


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"communication": "of"}, RecordingError, "communication='of'; wanted one of on, off"),
        (
            {"communication": "off", "compression": "zip"},
            ConfigurationError,
            "unknown hook 'zip': known are none, fp16",
        ),
    ],
)
def test_other_parameters_are_refused(params: dict[str, str], error: type[Exception], message: str) -> None:
    rank = make_rank()
    rank.params = params
    with pytest.raises(error, match=message):
        parallel(rank, torch.nn.Linear(2, 2))
