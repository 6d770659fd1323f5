"""Locks on the host and on GPUs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_distbench.errors import LauncherError
from pytest_distbench.machine import locks
from pytest_distbench.machine.locks import alone_on_this_host, lease


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(locks, "WAIT_S", 0.2)


def ignore(text: str) -> None:
    pass


def test_one_measurement_at_a_time(tmp_path: Path) -> None:
    waited: list[str] = []
    with (
        alone_on_this_host(on_wait=ignore),
        pytest.raises(LauncherError, match="another measurement on this host has"),
        alone_on_this_host(on_wait=waited.append),
    ):
        pytest.fail("two at once")

    assert waited == ["waiting for another measurement on this host"]
    with alone_on_this_host(on_wait=pytest.fail):
        pass


def test_who_waits_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TELL_S", 0.05)
    waited: list[str] = []
    with (
        alone_on_this_host(on_wait=ignore),
        pytest.raises(LauncherError),
        alone_on_this_host(on_wait=waited.append),
    ):
        pytest.fail("two at once")

    assert waited[0] == "waiting for another measurement on this host"
    assert waited[1].startswith("waiting for another measurement on this host since ")


def test_a_gpu_is_held_by_its_uuid_and_others_stay_free() -> None:
    with lease(["GPU-b", "GPU-a"], on_wait=pytest.fail):
        with lease(["GPU-c"], on_wait=pytest.fail):
            pass
        with pytest.raises(LauncherError, match="the run that uses GPU-a has held"), lease(["GPU-a"], on_wait=ignore):
            pytest.fail("two at once")


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


def test_a_uuid_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    with lease(["../../etc/passwd"], on_wait=pytest.fail):
        assert [path.parent for path in tmp_path.rglob("*")] == [tmp_path]


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").write_text("a file")
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))

    with pytest.raises(LauncherError, match="TMPDIR must be"), alone_on_this_host(on_wait=ignore):
        pass
