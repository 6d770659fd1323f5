"""The lines before the first test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.results import result
from support.stores import KEY, TEST, entry

from pytest_distbench.report.header import header_lines
from pytest_distbench.store.baselines import BaselineStore


def lines(folder: Path, **changes: Any) -> list[str]:
    given = {"world_sizes": (2, 4), "num_gpus": 0, "backend": "gloo", "launcher": "warm", "update": "", "against": ""}
    return header_lines(result().environment, BaselineStore(folder, "cpu-x"), **(given | changes))


def test_what_is_measured_on_what_and_against_which_baselines(tmp_path: Path) -> None:
    BaselineStore(tmp_path, "cpu-x").write(TEST, KEY, entry(1.0))
    first, second = lines(tmp_path)

    assert first.endswith(": world size 2, 4, gloo, 2 CPU cores (X), torch 2.14.0, warm launcher")
    assert second == f"distbench: baselines {tmp_path}/cpu-x (1 entry)"


def test_gpus_are_counted(tmp_path: Path) -> None:
    assert "nccl, 8 GPUs (X)" in lines(tmp_path, num_gpus=8, backend="nccl")[0]


def test_an_update_is_announced(tmp_path: Path) -> None:
    assert lines(tmp_path, update="new")[-1] == "distbench: update=new; baselines will be written"


def test_against_another_revision_no_baselines_are_named(tmp_path: Path) -> None:
    assert lines(tmp_path, against="main")[1:] == ["distbench: against main, in turns; stored baselines are not read"]
