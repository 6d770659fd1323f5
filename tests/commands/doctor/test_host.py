"""What the doctor makes of a host, whose files are made up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_distbench.commands.doctor import host
from pytest_distbench.commands.doctor.finding import Finding


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def only(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    return found


@pytest.mark.parametrize(
    ("files", "level", "text"),
    [
        ({"cpu.max": "50000 100000"}, "warn", "0.5 CPUs of"),
        ({"cpu.max": "max 100000"}, "ok", "none"),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "warn", "0.5 CPUs of"),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "ok", "none"),
        ({"cpu.max": "nonsense"}, "ok", "none"),
        ({}, "ok", "none"),
    ],
)
def test_the_quota_of_the_container(tmp_path: Path, files: dict[str, str], level: str, text: str) -> None:
    for name, content in files.items():
        put(tmp_path, f"sys/fs/cgroup/{name}", content)
    found = only(host.container_limits(tmp_path))

    assert found.level == level
    assert text in found.found


def test_other_processes_are_named() -> None:
    found = only(host.other_work([(1.5, "train.py", 42), (0.1, "sshd", 7)]))

    assert found.level == "warn"
    assert "1.60 of" in found.found
    assert "train.py (pid 42) 1.50" in found.found


def test_a_quiet_machine_is_well() -> None:
    assert only(host.other_work([(0.05, "sshd", 7)])).level == "ok"


def test_without_shared_memory_there_is_advice(tmp_path: Path) -> None:
    assert only(host.shared_memory(tmp_path / "none", gpus=0)).level == "warn"


@pytest.mark.parametrize(
    ("free_mib", "gpus", "level"),
    [
        (64, 0, "warn"),
        (65, 0, "ok"),
        (64, 1, "warn"),
        (200, 8, "warn"),
        (320, 8, "warn"),
        (321, 8, "ok"),
        (200, 4, "ok"),
    ],
)
def test_shared_memory_has_to_do_for_nccl_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch, free_mib: int, gpus: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free_mib * 2**20))
    found = only(host.shared_memory(Path("/dev/shm"), gpus=gpus))

    assert found.level == level
    assert ("emptyDir" in found.advice) == (level == "warn")
