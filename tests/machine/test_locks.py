"""What a measurement holds of its host: locks, their queues, and control groups."""

from __future__ import annotations

import os
import re
import select
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.control_groups import SimulatedGroups

from pytest_distbench.errors import AroundUnavailable, LauncherError
from pytest_distbench.machine import locks
from pytest_distbench.machine.locks import (
    Version,
    alone_on_this_host,
    cpu_group,
    find_controller,
    lease,
    make_group,
    remove,
    remove_stale,
    turn_of_a_launch,
    with_others_on_this_host,
)


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(locks, "WAIT_S", 0.2)
    monkeypatch.setattr(locks, "_OF_XDIST", "of no process")  # these tests may run in such a worker


def ignore(text: str) -> None:
    pass


def test_one_measurement_at_a_time(tmp_path: Path) -> None:
    waited: list[str] = []
    with (
        alone_on_this_host(on_wait=ignore),
        pytest.raises(
            LauncherError, match=rf"did not get {tmp_path}.*; it is held by pid {os.getpid()} .*kill {os.getpid()}"
        ),
        alone_on_this_host(on_wait=waited.append),
    ):
        pytest.fail("two at once")

    [said] = waited
    assert said.startswith(f"waiting for another measurement on this host: pid {os.getpid()} (")
    assert re.search(r"\), which has run for [\d.]+ (s|min)$", said)
    with alone_on_this_host(on_wait=pytest.fail):
        pass


def test_runs_that_share_the_host_measure_together_but_not_with_one_that_is_alone() -> None:
    with with_others_on_this_host(on_wait=ignore):
        with with_others_on_this_host(on_wait=pytest.fail):
            pass
        with (
            pytest.raises(LauncherError, match=r"for another measurement on this host, .* held by pid"),
            alone_on_this_host(on_wait=ignore),
        ):
            pytest.fail("one of them believes to be alone")
    with (
        alone_on_this_host(on_wait=pytest.fail),
        pytest.raises(LauncherError, match=r"for a measurement that is alone on this host, .* held by pid"),
        with_others_on_this_host(on_wait=ignore),
    ):
        pytest.fail("one of them believes to be alone")


def test_without_waiting_it_is_said_that_the_host_is_not_free() -> None:
    with alone_on_this_host(on_wait=ignore), alone_on_this_host(on_wait=pytest.fail, waits=False) as is_free:
        assert not is_free
    with alone_on_this_host(on_wait=pytest.fail, waits=False) as is_free:
        assert is_free


def test_launches_without_timings_run_at_once_and_with_timings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TURN_S", 60.0)
    with (
        turn_of_a_launch(has_timings=False),
        turn_of_a_launch(has_timings=False),
        pytest.raises(LauncherError, match="for launches without timings"),
        turn_of_a_launch(has_timings=True),
    ):
        pytest.fail("a launch that is timed runs at the same time as another one")


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_no_launch_keeps_another_from_its_turn_for_long(
    monkeypatch: pytest.MonkeyPatch, *, first: bool, second: bool
) -> None:
    monkeypatch.setattr(locks, "TURN_S", 0.05)
    monkeypatch.setattr(locks, "WAIT_S", 60.0)
    with turn_of_a_launch(has_timings=first), turn_of_a_launch(has_timings=second):
        pass  # it came to its turn while the other one still ran


WAITER = """
import sys, tempfile; tempfile.tempdir = {folder!r}
from pytest_distbench.machine import locks
locks._PAUSE_S = {pause}
with locks.{how}(on_wait=lambda text: print("waits", flush=True)):
    print("has it", flush=True)
    sys.stdin.read()
"""


class Waiter:
    """A process that waits for the host; the first ones look so rarely that whoever looks often would be before."""

    def __init__(self, folder: Path, pause_s: float, how: str = "alone_on_this_host") -> None:
        code = WAITER.format(folder=str(folder), pause=pause_s, how=how)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.says("waits")

    def says(self, text: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == text

    @property
    def is_silent(self) -> bool:
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], 0)[0]

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("how", ["alone_on_this_host", "with_others_on_this_host"])
@pytest.mark.parametrize("killed", [None, 0, 1], ids=["none", "the first", "the second"])
def test_who_waits_longest_is_next_whoever_is_killed(tmp_path: Path, how: str, killed: int | None) -> None:
    with alone_on_this_host(on_wait=ignore):
        waiters = [Waiter(tmp_path, pause_s, how="alone_on_this_host") for pause_s in (0.5, 0.2)]
        waiters.append(Waiter(tmp_path, 0.001, how=how))
        if killed is not None:
            waiters.pop(killed).end(kill=True)
    while waiters:
        first = waiters.pop(0)
        first.says("has it")
        assert all(waiter.is_silent for waiter in waiters)
        first.end()


def test_one_who_comes_later_does_not_go_before_one_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "WAIT_S", 60.0)
    with alone_on_this_host(on_wait=ignore):
        waiter = Waiter(tmp_path, 0.5)
    told: list[str] = []

    def end_the_waiter(text: str) -> None:
        told.append(text)
        waiter.says("has it")
        waiter.end()

    with alone_on_this_host(on_wait=end_the_waiter):
        assert told


def test_a_process_forked_meanwhile_does_not_keep_the_lock() -> None:
    ready, begin = os.pipe()
    with alone_on_this_host(on_wait=ignore):
        child = os.fork()
        if child == 0:
            os.close(begin)
            os.read(ready, 1)
            os._exit(0)
    with alone_on_this_host(on_wait=pytest.fail):
        pass
    os.close(begin)
    os.waitpid(child, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make the file of another user")
def test_the_lock_of_a_gpu_that_another_user_has_made_is_taken(tmp_path: Path) -> None:
    """Its folder is like /tmp: sticky, and writable for all."""
    tmp_path.chmod(0o1777)
    with lease(["GPU-a"], on_wait=pytest.fail):
        paths = list(tmp_path.iterdir())
    for path in paths:
        os.chown(path, 12345, 12345)

    with lease(["GPU-a"], on_wait=pytest.fail):
        pass


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").write_text("a file")
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))

    with pytest.raises(LauncherError, match="TMPDIR must be"), alone_on_this_host(on_wait=ignore):
        pass


def test_secrets_of_the_holder_of_a_lock_are_not_printed(tmp_path: Path) -> None:
    code = (
        f"import sys, tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from pytest_distbench.machine.locks import alone_on_this_host\n"
        "with alone_on_this_host(on_wait=print): print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, "--api-key", "s3cr3tValue"]
    waited: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LauncherError) as told, alone_on_this_host(on_wait=waited.append):
            pytest.fail("two at once")
        holder.communicate()

    assert f"pid {holder.pid} (" in waited[0]
    assert "s3cr3tValue" not in waited[0] + str(told.value)


def test_the_lock_of_a_gpu_is_its_uuids_and_for_all_and_that_of_a_user_his_alone(tmp_path: Path) -> None:
    with alone_on_this_host(on_wait=ignore), lease(["GPU-a"], on_wait=ignore):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    own, shared = f"distbench-{os.getuid()}", "distbench-gpu-GPU-a"
    assert modes == {
        f"{own}.lock": 0o600, f"{own}.queue": 0o600, f"{shared}.lock": 0o666, f"{shared}.queue": 0o666
    }  # fmt: skip

    with lease(["GPU-b", "GPU-a"], on_wait=pytest.fail):
        with lease(["GPU-c"], on_wait=pytest.fail):
            pass
        with pytest.raises(LauncherError, match="for the run that uses GPU-a"), lease(["GPU-a"], on_wait=ignore):
            pytest.fail("two at once")

    with lease(["../../etc/passwd"], on_wait=pytest.fail):
        assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}


def test_a_gpu_held_by_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    code = f"""
        import os, signal, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        from pytest_distbench.machine.locks import lease
        with lease(["GPU-a"], on_wait=print):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == -9

    with lease(["GPU-a"], on_wait=pytest.fail):
        pass


both = pytest.mark.parametrize("version", [1, 2])


@both
@pytest.mark.parametrize("top", ["/", "/jobs", "/jobs/mine"])  # as a container may have it mounted
def test_the_group_of_this_process_is_found(
    version: Version, top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = SimulatedGroups(tmp_path, version, monkeypatch, top=top)

    assert find_controller(tmp_path) == simulated.folder


@both
def test_without_a_way_to_the_group_it_says_so(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SimulatedGroups(tmp_path, version, monkeypatch)
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
    simulated = SimulatedGroups(tmp_path, version, monkeypatch)
    group = cpu_group(simulated.folder, 3)
    make_group(group, cpus)
    switched_on = simulated.folder / "cgroup.subtree_control"

    assert group.name == f"distbench-{os.getpid()}-rank3"
    assert {path.name: path.read_text() for path in group.iterdir()} == files
    assert (switched_on.read_text() if switched_on.exists() else "") == ("+cpu" if version == 2 else "")
    assert remove(group)
    assert simulated.groups() == []


@both
def test_where_no_group_can_be_made_it_says_which_and_what_to_do(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = SimulatedGroups(tmp_path, version, monkeypatch)
    group = cpu_group(simulated.folder, 0)
    refusing = group if version == 1 else simulated.folder / "cgroup.subtree_control"
    refusing.symlink_to(tmp_path / "nowhere" / "file")
    text = f"needs a control group that may be written: {re.escape(str(refusing))}: .*; run pytest as root"

    with pytest.raises(AroundUnavailable, match=text):
        make_group(group, 0.3)


def test_a_group_in_use_is_waited_for_and_then_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedGroups(tmp_path, 1, monkeypatch)
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.05)
    group = cpu_group(simulated.folder, 0)
    make_group(group, 0.3)
    (group / "cgroup.procs").write_text("77\n")

    assert not remove(group)
    (group / "cgroup.procs").unlink()
    assert remove(group)
    assert remove(group)  # it is gone already


def test_groups_of_processes_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedGroups(tmp_path, 1, monkeypatch)
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    of_others = [f"distbench-{os.getppid()}-rank0", f"distbench-{process.pid}"]
    for name in (f"distbench-{process.pid}-rank0", f"distbench-{process.pid}-rank1", *of_others):
        (simulated.folder / name).mkdir()
    (simulated.folder / f"distbench-{process.pid}-rank1" / "cgroup.procs").write_text("77\n")
    remove_stale(simulated.folder)

    assert simulated.groups() == sorted([*of_others, f"distbench-{process.pid}-rank1"])


def test_a_system_without_control_groups_or_without_the_controller_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AroundUnavailable, match="/proc/self/cgroup: No such file or directory; run pytest as root"):
        find_controller(tmp_path)

    simulated = SimulatedGroups(tmp_path, 2, monkeypatch)
    (simulated.folder / "cgroup.controllers").write_text("memory pids")

    with pytest.raises(AroundUnavailable, match="no cpu controller in /proc/self/cgroup"):
        find_controller(tmp_path)


def test_how_often_a_quota_stopped_a_group(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 40\nnr_throttled 30\nthrottled_usec 900\n")
    assert locks.throttled(tmp_path) == 0.75
    (tmp_path / "cpu.stat").write_text("usage_usec 0\n")
    assert locks.throttled(tmp_path) == 0.0
