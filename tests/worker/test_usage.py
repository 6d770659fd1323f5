"""What a rank used: CPU time, memory, software; and who else computed meanwhile."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from support.plans import make_plan
from support.processes import wait_for

from pytest_distbench.launch.site import processes
from pytest_distbench.worker.load import Descendants, LoadWindow, busy_s, oldest_marked, usable_cpus
from pytest_distbench.worker.process import MemoryPeak, mpi_version, own_cpu_s, software

COMPUTES = "import time\nwhile time.process_time() < {seconds}: pass\nprint('done', flush=True)\ntime.sleep(1000)"
"""A process that computes for so long, and lives on."""

STARTS_ONE = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(1000)"
"""A process whose child does."""


class Times(NamedTuple):
    """What psutil says of a CPU, as far as the busy time is made of it."""

    user: float
    system: float
    idle: float


def test_work_on_cpus_that_are_another_jobs_is_none_of_the_machines_but_where_some_are_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    per_cpu = [Times(user=1.0, system=0.5, idle=9.0), Times(user=20.0, system=0.0, idle=1.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: per_cpu)
    monkeypatch.setattr("os.sysconf", lambda name: len(per_cpu))

    assert busy_s(frozenset({0}))[0] == 1.5
    assert busy_s(frozenset({1}))[0] == 20.0

    # Their list leaves those out, so that its indices are not the CPUs'
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [Times(1.0, 0.0, 5.0), Times(2.0, 0.0, 5.0)])
    monkeypatch.setattr("os.sysconf", lambda name: 4)

    assert busy_s(frozenset({1}))[0] == 3.0


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code, and waits for what it prints; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *words: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, **options)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        processes.kill(processes.family([process.pid]))
        process.communicate()


def test_threads_that_ended_before_the_end_are_told_where_somebody_looked(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Their times go with them."""
    window = LoadWindow(os.getpid(), usable_cpus())
    process = start(COMPUTES.format(seconds=0.15))
    window.look()
    process.kill()
    process.wait()
    window.end()

    assert window.load is not None
    assert window.load.ran_s >= 0.15


def test_the_oldest_of_a_launch_is_found_by_its_mark(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Below a shell that has the mark, and one that has another."""
    code = "from pytest_distbench.worker.load import oldest_marked as f; import os; print(os.getppid(), f('MARK'))"
    inner = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {code!r}]); print(end="", flush=True)'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    outer = subprocess.run(
        [sys.executable, "-c", inner], env={**env, "MARK": "mine"}, capture_output=True, text=True, check=True
    )
    parent, found = map(int, outer.stdout.split())

    assert found == parent
    assert oldest_marked("A_VARIABLE_THAT_NOBODY_HAS") == os.getpid()


def test_work_shows_in_the_processes_own_time() -> None:
    before, until = own_cpu_s(), time.process_time() + 0.05
    while time.process_time() < until:
        pass

    assert own_cpu_s() - before >= 0.04


def test_memory_is_what_is_needed_beyond_what_the_process_had_without_pages_of_files(tmp_path: Path) -> None:
    had = bytearray(b"x") * 2**26
    peak = MemoryPeak(make_plan(tmp_path))
    before = peak.num_bytes()
    needed = bytearray(b"x") * 2**26
    del had, needed
    now = peak.num_bytes()

    assert before is not None
    assert now is not None
    assert before < 2**24
    assert now == pytest.approx(2**26, rel=0.2)

    needed = bytearray(b"x") * 2**26
    del needed

    assert (MemoryPeak(make_plan(tmp_path)).num_bytes() or 0) < 2**24

    (tmp_path / "data").write_bytes(bytes(2**25))
    peak = MemoryPeak(make_plan(tmp_path))
    with open(tmp_path / "data", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        touched = sum(data[i] for i in range(0, 2**25, 4096))
        now = peak.num_bytes()

    assert touched == 0
    assert (now or 0) < 2**24


def test_where_the_system_does_not_tell_memory_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)

    assert MemoryPeak(make_plan(tmp_path)).num_bytes() is None


def test_versions_are_those_that_run_and_on_the_cpu_the_driver_is_not_loaded_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("this loads the driver"))

    assert "cuda" not in software(make_plan(tmp_path))

    found = software(make_plan(tmp_path))

    assert found["torch"] == str(torch.__version__)
    assert {"python", "numpy", "cpu_capability", "threads"} <= found.keys()


class Mpi:
    """A process that has loaded an MPI library."""

    @staticmethod
    def MPI_Get_library_version(told: Any, length: Any) -> int:  # noqa: N802 its name in the standard
        told.value = b"Open MPI v5.0.6, package: Open MPI a@b Distribution\n"
        return 0


def test_of_a_process_of_mpi_the_librarys_own_version_is_told() -> None:
    assert mpi_version(Mpi()) == "Open MPI v5.0.6"
    assert mpi_version(object()) == ""


def test_a_child_that_still_runs_counts_as_own_and_not_what_it_computed_before(start: Callable[..., object]) -> None:
    start(COMPUTES.format(seconds=0.3))
    window = LoadWindow(os.getpid(), usable_cpus())
    window.end()

    assert window.load is not None
    assert window.load.own_s < 0.2
    assert window.load.ran_s < 0.2

    window = LoadWindow(os.getpid(), usable_cpus())
    start(COMPUTES.format(seconds=0.15))
    start(STARTS_ONE, COMPUTES.format(seconds=0.15))
    window.end()

    assert window.load is not None
    assert window.load.own_s + 0.04 >= 0.3  # ticks of 10 ms
    assert window.load.own_s <= window.load.busy_s + 0.1
    assert window.load.ran_s >= 0.3
    assert window.load.waited_s >= 0.0


def test_a_process_of_somebody_else_is_not_own(start: Callable[..., subprocess.Popen[str]]) -> None:
    family = Descendants(start("print(flush=True); import time; time.sleep(1000)").pid)
    start(COMPUTES.format(seconds=0.15))
    before = family.cpu_s
    family.look()

    assert family.cpu_s - before < 0.1


def test_threads_that_want_one_cpu_wait_for_it(start: Callable[..., subprocess.Popen[str]]) -> None:
    cpu = {min(usable_cpus())}
    window = LoadWindow(os.getpid(), frozenset(cpu))
    code = f"import os; os.sched_setaffinity(0, {cpu}); "
    both = [
        subprocess.Popen([sys.executable, "-c", code + "import time\nwhile time.process_time() < 0.2: pass"])
        for _ in range(2)
    ]
    wait_for(lambda: window.look() or all(process.poll() is not None for process in both))
    window.end()

    assert window.load is not None
    assert window.load.waited_s > 0.1
