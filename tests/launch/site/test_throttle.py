"""All that a process has started stands still for a share of the time, and goes on at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from support.processes import wait_for

from pytest_distbench.launch.site.processes import Throttle, is_stopped

BUSY = "while True: pass"


@pytest.fixture
def below() -> Iterator[list[int]]:
    """A child in a session of its own, and its child."""
    with subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{BUSY}'])"],
        start_new_session=True,
    ) as child:
        process = psutil.Process(child.pid)
        wait_for(lambda: len(process.children()) == 1)
        found = [child.pid, process.children()[0].pid]
        yield found
        psutil.Process(found[1]).kill()


@pytest.mark.parametrize("share", [0.25, 2.0])
def test_what_runs_below_stands_still_for_a_share_of_what_it_runs(below: list[int], share: float) -> None:
    began_at = time.monotonic()
    throttle = Throttle(share)
    seen = [[is_stopped(pid) for pid in below] for _ in range(200) if not time.sleep(0.005)]
    throttle.close()
    took_s = time.monotonic() - began_at

    assert [any(stopped) for stopped in zip(*seen, strict=True)] == [True, True]
    assert throttle.stopped_s == pytest.approx(took_s * share / (1 + share), rel=0.15)
    assert [is_stopped(pid) for pid in below] == [False, False]


def test_without_a_share_nothing_stands_still(below: list[int]) -> None:
    throttle = Throttle(0.0)
    throttle.close()

    assert (throttle.stopped_s, is_stopped(below[0])) == (0.0, False)
