"""Evidence from ranks that still live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_distbench.launch.diagnosis.evidence import waits_at
from pytest_distbench.launch.site import evidence
from pytest_distbench.records.launch_files import LaunchFiles

RANK = """
import faulthandler, signal, sys, time

def run_rank():
    faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"), all_threads=True)
    print("ready", flush=True)
    time.sleep(60)

run_rank()
"""


@pytest.mark.spawn
def test_a_rank_that_answers_the_signal_writes_its_stacks(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    script = tmp_path / "pytest_distbench" / "worker" / "main.py"
    script.parent.mkdir(parents=True)
    script.write_text(RANK)
    command = [sys.executable, str(script), str(files.stacks(0))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
            files.flight(0).touch()
            evidence.collect(files, {0: rank.pid}, lambda rank, request: None, undecided=[0], held=[])
        finally:
            rank.kill()

    assert "in run_rank" in files.stacks(0).read_text()


def test_a_rank_without_the_handler_is_not_sent_the_signal_it_would_die_of(tmp_path: Path) -> None:
    """This very process, which has none."""
    files = LaunchFiles(tmp_path)
    files.flight(0).touch()
    evidence.collect(files, {0: os.getpid()}, lambda rank, request: None, undecided=[0], held=[])

    assert "in run_rank" not in (files.stacks(0).read_text() if files.stacks(0).exists() else "")


def test_what_py_spy_says_reads_as_a_ranks_own_stacks() -> None:
    thread = evidence._Thread(frames=[evidence._Frame("f", "/me/a.py", 7)], thread_name="MainThread")

    assert waits_at(evidence._as_faulthandler(thread)) == "a.py:7 in f"
