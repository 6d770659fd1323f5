"""A process that somebody has stopped is told after a while, and not one that goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.processes import wait_for

from pytest_distbench.launch.site import standstill
from pytest_distbench.launch.site.processes import is_stopped
from pytest_distbench.launch.site.standstill import Standstill


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], text=True) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds go by from look to look."""
    monkeypatch.setattr(standstill, "time", SimpleNamespace(monotonic=iter(range(0, 100, 3)).__next__))


def test_one_that_stands_still_for_five_seconds_is_told_and_one_that_goes_on_is_not(
    stopped: subprocess.Popen[str],
) -> None:
    watched = Standstill()

    assert [watched.look([stopped.pid]), watched.look([stopped.pid])] == ["", ""]
    assert watched.look([stopped.pid]).startswith(f"the process {stopped.pid}, which starts the others")

    watched = Standstill()
    watched.look([stopped.pid])
    stopped.send_signal(signal.SIGCONT)
    wait_for(lambda: not is_stopped(stopped.pid))

    assert [watched.look([stopped.pid]) for _ in range(3)] == ["", "", ""]
