"""Finding, ending, throttling and watching processes, with processes that only sleep, and what may not be left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.processes import has_ended, wait_for

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.processes import Standstill, Throttle, is_stopped, remove_traces
from pytest_distbench.records.launch_files import LaunchFiles

pytestmark = pytest.mark.spawn

SLEEPS = "import time; print('up', flush=True); time.sleep(1000)"
HAS_A_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).wait()"
CATCHES = f"import signal; signal.signal(signal.SIGUSR1, lambda *_: None); {SLEEPS}"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in a session of its own; returns when it says that it is up."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str = SLEEPS, **variables: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield run
    for process in started:
        processes.kill_groups([process.pid])
        process.communicate()


def pids(found: list[psutil.Process]) -> set[int]:
    return {process.pid for process in found}


def test_a_process_is_found_by_a_variable_whole_with_its_value_or_of_any(start: Start) -> None:
    value = uuid.uuid4().hex
    wanted = start(MINE=value)
    start(MINE=f"{value}-and-more")
    start(NOT_MINE=value)

    assert pids(processes.find_marked("MINE", value)) == {wanted.pid}

    name = f"MINE_{uuid.uuid4().hex}"
    wanted = {start(**{name: value}).pid for value in ("", "a")}
    start(**{f"NOT_{name}": "a"})

    assert pids(processes.find_marked(name)) == wanted


def test_a_family_is_a_process_and_all_below_it(start: Start) -> None:
    parent = start(HAS_A_CHILD)
    [child] = pids(psutil.Process(parent.pid).children())

    assert pids(processes.family([parent.pid])) == {parent.pid, child}
    assert processes.kill(processes.family([parent.pid])) == []
    assert processes.family([parent.pid]) == []


def test_a_group_is_ended_after_its_leader_has_gone(start: Start) -> None:
    parent = start(HAS_A_CHILD)
    [child] = pids(psutil.Process(parent.pid).children())
    parent.kill()
    parent.wait()
    assert processes.is_alive(child)
    processes.kill_groups([parent.pid])

    wait_for(lambda: not processes.is_alive(child))


def test_of_a_group_whose_leader_nobody_waits_for_the_others_are_left(start: Start) -> None:
    """The first process of some containers does not reap its adopted children."""
    leader = start(HAS_A_CHILD)
    [child] = pids(psutil.Process(leader.pid).children())
    assert pids(processes.group(leader.pid)) == {leader.pid, child}
    os.kill(leader.pid, signal.SIGKILL)
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert pids(processes.group(leader.pid)) == {child}
    processes.kill_groups([leader.pid])

    wait_for(lambda: not processes.group(leader.pid))


def test_a_stopped_process_is_alive_and_stands_still(start: Start) -> None:
    process = start()
    assert not processes.is_stopped(process.pid)
    processes.send([process.pid], signal.SIGSTOP)

    wait_for(lambda: processes.is_stopped(process.pid))
    assert processes.is_alive(process.pid)


def test_a_handler_is_seen_from_outside(start: Start) -> None:
    with_it, without = start(CATCHES), start()

    assert processes.catches(with_it.pid, signal.SIGUSR1)
    assert not processes.catches(with_it.pid, signal.SIGUSR2)
    assert not processes.catches(without.pid, signal.SIGUSR1)


def test_a_process_that_is_gone_is_nobodys_and_no_error(start: Start) -> None:
    process = start()
    process.kill()
    process.wait()
    processes.send([process.pid], signal.SIGUSR1)
    processes.kill_groups([process.pid])

    assert processes.family([process.pid]) == []
    assert not processes.is_stopped(process.pid)
    assert not processes.catches(process.pid, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert processes.ending(code) == words


@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        ([["python", "x.py"]], psutil.STATUS_RUNNING, ["python", "x.py"]),
        ([["ray::Cleaner", "", ""]], psutil.STATUS_RUNNING, ["ray::Cleaner"]),
        ([[], [], ["python", "x.py"]], psutil.STATUS_DISK_SLEEP, ["python", "x.py"]),
        ([[]], psutil.STATUS_SLEEPING, ["nameless"]),
        ([[]], psutil.STATUS_ZOMBIE, ["nameless"]),
    ],
)
def test_a_process_whose_program_is_being_read_gets_its_command_line(
    lines: list[list[str]], status: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a cold disk: it was taken for none, and a command that had left it running for one that was done."""
    monkeypatch.setattr(processes, "_EXEC_S", 0.1)
    seen = iter(lines)
    process: Any = SimpleNamespace(
        cmdline=lambda: next(seen, lines[-1]), status=lambda: status, name=lambda: "nameless"
    )

    assert processes.command_line(process) == told


def test_a_resource_tracker_cleans_up_before_it_is_ended(start: Start) -> None:
    shares = (
        "from multiprocessing import shared_memory; import time; "
        "print('up', shared_memory.SharedMemory(create=True, size=100).name, flush=True); time.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", shares], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    name = process.stdout.readline().split()[1].decode()
    assert Path("/dev/shm", name).exists()

    def is_executed() -> bool:  # a tracker that has only been forked looks like the process it cleans up after
        return any("resource_tracker" in " ".join(p.cmdline()) for p in processes.family([process.pid]))

    wait_for(is_executed)

    assert processes.kill(processes.family([process.pid])) == []
    process.communicate()
    assert not Path("/dev/shm", name).exists()


def test_what_only_looks_like_a_resource_tracker_is_ended_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_CLEANERS_S", 0.2)
    process = start(f"# resource_tracker import main\n{SLEEPS}")

    assert processes.kill([psutil.Process(process.pid)]) == []


STAT = "4711 (a b) c) {} 1 4711 4711 0 -1 {} 100 0 0 0 7 3 0 0 20 0 12 0 1000 1 1 1"
"""The kernel's line of a process whose name holds blanks and a bracket."""
RUNNING, EXITING = 0x400040, 0x400044


@pytest.mark.parametrize(
    ("state", "flags", "pending", "ending"),
    [
        ("S", RUNNING, 0, False),
        ("D", RUNNING, 0, False),
        ("D", RUNNING, 1 << signal.SIGKILL - 1, True),
        ("R", EXITING, 0, True),
        ("D", EXITING, 0, True),
        ("Z", EXITING, 0, True),
    ],
    ids=["sleeps", "waits for a disk", "is killed there", "in its exit", "in its driver's", "has ended"],
)
def test_a_process_on_its_way_out_is_seen_however_long_the_kernel_takes(
    monkeypatch: pytest.MonkeyPatch, state: str, flags: int, pending: int, *, ending: bool
) -> None:
    files = {
        "/proc/4711/stat": STAT.format(state, flags),
        "/proc/4711/status": f"Name:\ta b) c\nSigPnd:\t{0:016x}\nShdPnd:\t{pending:016x}\nSigCgt:\t{0:016x}\n",
    }
    monkeypatch.setattr(processes, "read_proc", lambda path: files[path].encode())

    assert processes.is_ending(4711) is ending
    assert processes.state(4711)[0] == state


def test_of_real_processes_one_that_was_not_waited_for_is_ending_and_a_sleeping_one_is_not(start: Start) -> None:
    process = start()
    assert not processes.is_ending(process.pid)
    process.kill()
    wait_for(lambda: processes.state(process.pid)[0] == "Z")

    assert processes.is_ending(process.pid)
    assert not processes.is_alive(process.pid)
    process.wait()
    assert (processes.is_ending(process.pid), processes.state(process.pid)[0]) == (False, "")


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


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], text=True) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))
        yield process
        process.kill()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds go by from look to look."""
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=iter(range(0, 100, 3)).__next__))


@pytest.mark.usefixtures("clock")
def test_a_process_that_is_stopped_for_five_seconds_is_reported(
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
