"""Evidence from ranks that still live, and what is said of those that SIGKILL did not end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.nvml import HOSTS, Card, Host, State, made_up

from pytest_distbench.launch.evidence import waits_at
from pytest_distbench.launch.site import local, processes
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
            local.collect(files, {0: rank.pid}, lambda rank, request: None, undecided=[0], held=[])
        finally:
            rank.kill()

    assert "in run_rank" in files.stacks(0).read_text()


def test_a_rank_without_the_handler_is_not_sent_the_signal_it_would_die_of(tmp_path: Path) -> None:
    """This very process, which has none."""
    files = LaunchFiles(tmp_path)
    files.flight(0).touch()
    local.collect(files, {0: os.getpid()}, lambda rank, request: None, undecided=[0], held=[])

    assert "in run_rank" not in (files.stacks(0).read_text() if files.stacks(0).exists() else "")


def test_what_py_spy_says_reads_as_a_ranks_own_stacks() -> None:
    told = b'[{"pid": 1, "thread_name": "MainThread", "frames": [{"name": "f", "filename": "/me/a.py", "line": 7}]}]'

    assert waits_at(local.as_faulthandler(told)) == "a.py:7 in f"


HOLDS = State(processes={7: 1.0, 8: 1.0, 9: 1.0}, bytes_of={7: 3 * 2**30, 9: 2**30})
TWO_GPUS = [
    Card(name="NVIDIA H200", uuid="GPU-1", bus=1, states={0.0: HOLDS}),
    Card(name="NVIDIA H200", uuid="GPU-2", bus=2, trouble="GPU_IS_LOST"),
]


def test_a_rank_that_the_kernel_keeps_is_named_with_the_gpu_memory_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps process 7 in the driver; 6 has gone."""
    monkeypatch.setattr(processes, "is_alive", {6: False, 7: True}.__getitem__)
    monkeypatch.setattr(processes, "state", {7: ("D", 0)}.__getitem__)
    with made_up(Host(cards=TWO_GPUS)):
        told = local.tell_stuck({0: 6, 1: 7}, after_s=25.2, on_gpu=True)

        assert "GPU memory" not in local.tell_stuck({1: 7}, after_s=25.2, on_gpu=False)[1]
        assert local.gpu_memory([7, 8]) == {7: 3 * 2**30}
    assert told == {
        1: "rank 1 (pid 7) is still there 25 s after it was killed: state D, the kernel waits for a device or a file "
        "system, and holds 3 GiB of GPU memory; ps -o pid,stat,wchan 7 shows when it has gone"
    }
    with made_up(HOSTS["driver not loaded"]):
        assert "state D" in local.tell_stuck({1: 7}, after_s=25.2, on_gpu=True)[1]
