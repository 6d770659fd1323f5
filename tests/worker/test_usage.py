"""What a process used, and the software it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from support.plans import make_plan

from pytest_distbench.worker.usage import busy_s, own_cpu_s, peak_memory_bytes, software, usable_cpus


def test_work_shows_in_the_processes_own_time() -> None:
    before, until = own_cpu_s(), time.process_time() + 0.05
    while time.process_time() < until:
        pass

    assert own_cpu_s() - before >= 0.04
    assert busy_s(usable_cpus()) > 0


class Times(NamedTuple):
    """What psutil says of a CPU, as far as the busy time is made of it."""

    user: float
    system: float
    idle: float


def test_work_on_cpus_that_are_another_jobs_is_none_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    per_cpu = [Times(user=1.0, system=0.5, idle=9.0), Times(user=20.0, system=0.0, idle=1.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: per_cpu)
    monkeypatch.setattr("os.sysconf", lambda name: len(per_cpu))

    assert busy_s(frozenset({0})) == 1.5
    assert busy_s(frozenset({1})) == 20.0
    assert busy_s(None) == 21.5


def test_where_cpus_are_offline_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their list leaves those out, so that its indices are not the CPUs'."""
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [Times(1.0, 0.0, 5.0), Times(2.0, 0.0, 5.0)])
    monkeypatch.setattr("os.sysconf", lambda name: 4)

    assert busy_s(frozenset({1})) == 3.0


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
