"""What a process used, and the software it runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from support.plans import make_plan

from pytest_distbench.worker.usage import own_cpu_s, peak_memory_bytes, software


def test_work_shows_in_the_processes_own_time() -> None:
    before, until = own_cpu_s(), time.process_time() + 0.05
    while time.process_time() < until:
        pass

    assert own_cpu_s() - before >= 0.04


def test_memory_is_in_bytes(tmp_path: Path) -> None:
    assert 2**24 < peak_memory_bytes(make_plan(tmp_path)) < 2**40


def test_versions_are_those_that_run(tmp_path: Path) -> None:
    found = software(make_plan(tmp_path))

    assert found["torch"] == str(torch.__version__)
    assert {"python", "numpy", "cpu_capability", "threads"} <= found.keys()


def test_to_tell_versions_a_rank_of_the_cpu_does_not_load_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("this loads the driver"))

    assert "cuda" not in software(make_plan(tmp_path))
