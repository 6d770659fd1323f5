"""Locks on the host and on GPUs."""

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

from pytest_distbench.errors import LauncherError
from pytest_distbench.machine import locks
from pytest_distbench.machine.locks import alone_on_this_host, beside_others_on_this_host, lease


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
    assert re.search(r"\), which has run for \d+ min$", said)
    with alone_on_this_host(on_wait=pytest.fail):
        pass


def test_those_who_share_the_host_measure_beside_each_other_and_beside_nobody_else() -> None:
    with beside_others_on_this_host(on_wait=ignore):
        with beside_others_on_this_host(on_wait=pytest.fail):
            pass
        with (
            pytest.raises(LauncherError, match=r"for another measurement on this host, .* held by pid"),
            alone_on_this_host(on_wait=ignore),
        ):
            pytest.fail("one of them believes to be alone")
    with (
        alone_on_this_host(on_wait=pytest.fail),
        pytest.raises(LauncherError, match=r"for a measurement that is alone on this host, .* held by pid"),
        beside_others_on_this_host(on_wait=ignore),
    ):
        pytest.fail("one of them believes to be alone")


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


@pytest.mark.parametrize("how", ["alone_on_this_host", "beside_others_on_this_host"])
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
    """In a folder such as /tmp: sticky, and for all to write to."""
    tmp_path.chmod(0o1777)
    with lease(["GPU-a"], on_wait=pytest.fail):
        paths = list(tmp_path.iterdir())
    for path in paths:
        os.chown(path, 12345, 12345)

    with lease(["GPU-a"], on_wait=pytest.fail):
        pass


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").write_text("a file")
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))

    with pytest.raises(LauncherError, match="TMPDIR must be"), alone_on_this_host(on_wait=ignore):
        pass


def test_secrets_of_who_holds_the_host_are_not_told(tmp_path: Path) -> None:
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
