"""Control groups that limit CPU time: found, made, removed; on a made-up tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.control_groups import MadeUp

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.machine import locks
from pytest_distbench.machine.locks import Version, cpu_group, find_controller, make_group, remove, remove_stale

both = pytest.mark.parametrize("version", [1, 2])


@both
@pytest.mark.parametrize("top", ["/", "/jobs", "/jobs/mine"])  # as a container may have it mounted
def test_the_group_of_this_process_is_found(
    version: Version, top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up = MadeUp(tmp_path, version, monkeypatch, top=top)

    assert find_controller(tmp_path) == made_up.folder


@both
def test_without_a_way_to_the_group_it_says_so(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeUp(tmp_path, version, monkeypatch)
    (tmp_path / "proc/self/mountinfo").write_text("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n")

    with pytest.raises(AroundUnavailable, match="/jobs/mine of the cpu controller is mounted nowhere; run pytest as"):
        find_controller(tmp_path)


@pytest.mark.parametrize(
    ("version", "cpus", "files"),
    [
        (1, 0.3, {"cpu.cfs_period_us": "5000", "cpu.cfs_quota_us": "1500"}),
        (1, 2, {"cpu.cfs_period_us": "5000", "cpu.cfs_quota_us": "10000"}),
        (1, 0.01, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "1000"}),  # the kernel's least quota
        (2, 0.3, {"cgroup.type": "threaded", "cpu.max": "1500 5000"}),
    ],
)
def test_a_group_is_made_with_its_quota(
    version: Version, cpus: float, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up = MadeUp(tmp_path, version, monkeypatch)
    group = cpu_group(made_up.folder, 3)
    make_group(group, cpus)
    switched_on = made_up.folder / "cgroup.subtree_control"

    assert group.name == f"distbench-{os.getpid()}-rank3"
    assert {path.name: path.read_text() for path in group.iterdir()} == files
    assert (switched_on.read_text() if switched_on.exists() else "") == ("+cpu" if version == 2 else "")
    assert remove(group)
    assert made_up.groups() == []


@both
def test_where_no_group_can_be_made_it_says_which_and_what_to_do(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up = MadeUp(tmp_path, version, monkeypatch)
    group = cpu_group(made_up.folder, 0)
    refusing = group if version == 1 else made_up.folder / "cgroup.subtree_control"
    refusing.symlink_to(tmp_path / "nowhere" / "file")
    told = f"needs a control group that may be written: {re.escape(str(refusing))}: .*; run pytest as root"

    with pytest.raises(AroundUnavailable, match=told):
        make_group(group, 0.3)


def test_a_group_in_use_is_waited_for_and_then_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = MadeUp(tmp_path, 1, monkeypatch)
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.05)
    group = cpu_group(made_up.folder, 0)
    make_group(group, 0.3)
    (group / "cgroup.procs").write_text("77\n")

    assert not remove(group)
    (group / "cgroup.procs").unlink()
    assert remove(group)
    assert remove(group)  # it is gone already


def test_groups_of_processes_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = MadeUp(tmp_path, 1, monkeypatch)
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    of_others = [f"distbench-{os.getppid()}-rank0", f"distbench-{process.pid}"]
    for name in (f"distbench-{process.pid}-rank0", f"distbench-{process.pid}-rank1", *of_others):
        (made_up.folder / name).mkdir()
    (made_up.folder / f"distbench-{process.pid}-rank1" / "cgroup.procs").write_text("77\n")
    remove_stale(made_up.folder)

    assert made_up.groups() == sorted([*of_others, f"distbench-{process.pid}-rank1"])


def test_a_system_without_control_groups_or_without_the_controller_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AroundUnavailable, match="/proc/self/cgroup: No such file or directory; run pytest as root"):
        find_controller(tmp_path)

    made_up = MadeUp(tmp_path, 2, monkeypatch)
    (made_up.folder / "cgroup.controllers").write_text("memory pids")

    with pytest.raises(AroundUnavailable, match="no cpu controller in /proc/self/cgroup"):
        find_controller(tmp_path)


def test_how_often_a_quota_stopped_a_group(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 40\nnr_throttled 30\nthrottled_usec 900\n")
    assert locks.throttled(tmp_path) == 0.75
    (tmp_path / "cpu.stat").write_text("usage_usec 0\n")
    assert locks.throttled(tmp_path) == 0.0
