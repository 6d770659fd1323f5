"""What a launch may not leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.processes import has_ended, wait_for

from pytest_distbench.launch.site.processes import remove_traces
from pytest_distbench.records.launch_files import LaunchFiles

BEGETS = """
import os, signal, time
from pytest_distbench.launch.site.processes import end_with

parent = os.getpid()
if os.fork() == 0:
    end_with(parent)
    print(os.getpid(), flush=True)
    time.sleep(1000)
signal.pause()
"""


@pytest.mark.spawn
def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", BEGETS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        wait_for(lambda: has_ended(child), limit_s=30)


def test_sockets_and_the_plan_go_and_what_is_for_reading_stays(tmp_path: Path) -> None:
    remove_traces(LaunchFiles(tmp_path))

    assert list(tmp_path.iterdir()) == []

    files = LaunchFiles(tmp_path)
    files.sockets.mkdir()
    for path in (files.plan, files.control, files.sockets / "listener", files.log(0), files.report(0)):
        path.touch()
    remove_traces(files)

    assert sorted(tmp_path.iterdir()) == sorted([files.log(0), files.report(0)])
