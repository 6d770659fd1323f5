"""Compression of gradients by torch's hooks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Launch
from support.releases import RECORDS, refuses_bf16

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.workloads import compression
from pytest_distbench.workloads.compression import hook_named

WIDTH, LAYERS = 64, 2
GRADIENT_BYTES = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)


@pytest.mark.parametrize("name", ["gzip", 3, None])
def test_an_unknown_hook_is_told_with_those_there_are(name: object) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown hook .*: known are none, fp16, bf16, powersgd"):
        hook_named(name)


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
    return Train(Launch(launcher, tmp_path, Path(compression.__file__)))


def values(record: LaunchRecord) -> dict[str, float | None]:
    assert (record.outcome, record.reason) == ("passed", "")
    return {m.name: m.value for m in record.measurements}


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_less_is_sent_and_the_gradient_is_less_exact(train: Train) -> None:
    none, half, low_rank = (values(train(hook)) for hook in ("none", "fp16", "powersgd"))

    assert "gradient_error" not in none
    assert 0 < (half["gradient_error"] or 0.0) < 2**-8 < (low_rank["gradient_error"] or 0.0) < 1
    if RECORDS:
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


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_power_sgd_on_several_buckets_is_skipped_on_gloo_where_it_may_wait_for_ever(train: Train) -> None:
    record = train("powersgd", width=512)

    assert record.outcome == "skipped"
    assert "on several buckets for ever" in record.reason
