"""Processes are found by their ids and by their environment, and ended with all they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import psutil
import pytest
from support.processes import wait_for

from pytest_distbench.launch import processes

VARIABLE = "DISTBENCH_TEST_OF_PROCESSES"


@pytest.fixture
def sleeper() -> Iterator[tuple[psutil.Process, str]]:
    """A process that has started another one, and the mark in their environment."""
    value = uuid.uuid4().hex
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    made = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, VARIABLE: value}, start_new_session=True)
    wait_for(lambda: len(processes.find_marked(VARIABLE, value)) == 2)
    yield psutil.Process(made.pid), value
    processes.kill(processes.find_marked(VARIABLE, value))
    made.wait()


def test_a_process_is_found_by_its_environment_and_by_its_parents(sleeper: tuple[psutil.Process, str]) -> None:
    process, value = sleeper
    marked = {found.pid for found in processes.find_marked(VARIABLE, value)}

    assert marked == {found.pid for found in processes.family([process.pid])}
    assert marked == {process.pid, *processes.children(process.pid)}
    assert processes.find_marked(VARIABLE, "another") == []
    assert marked <= {found.pid for found in processes.find_carrying(VARIABLE)}


def test_what_is_killed_is_gone_with_the_group_it_leads(sleeper: tuple[psutil.Process, str]) -> None:
    process, value = sleeper

    assert processes.kill([process]) == []
    wait_for(lambda: not processes.find_marked(VARIABLE, value))
    assert not processes.is_alive(process.pid)


def test_a_process_that_stands_still_is_told_from_one_that_runs(sleeper: tuple[psutil.Process, str]) -> None:
    process, _ = sleeper
    before = processes.is_stopped(process.pid)
    processes.send([process.pid], signal.SIGSTOP)
    wait_for(lambda: processes.is_stopped(process.pid))

    assert not before
    assert processes.is_alive(process.pid)


def test_a_process_that_never_was_is_no_error() -> None:
    gone = 2**22 + 1
    processes.send([gone], signal.SIGTERM)
    processes.kill_groups([gone])

    assert (processes.family([gone]), processes.children(gone), processes.is_alive(gone)) == ([], set(), False)
    assert not processes.is_stopped(gone)


def test_a_signal_with_a_handler_is_known() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    caught = processes.catches(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    uncaught = processes.catches(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)

    assert (caught, uncaught) == (True, False)


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "ended with exit code 3"), (-9, "was killed by SIGKILL"), (-250, "was killed by signal 250")],
)
def test_an_exit_code_is_told_in_words(code: int, words: str) -> None:
    assert processes.ending(code) == words
