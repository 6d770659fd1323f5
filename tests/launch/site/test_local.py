"""The site on this host: processes of ranks, their lines, and evidence from those that still live."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nvml import HOSTS, Card, Host, State, simulated
from support.plans import make_plan
from support.processes import wait_for

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.evidence import waits_at
from pytest_distbench.launch.site import Exit, local, processes
from pytest_distbench.launch.site.local import LONGEST_LINE_BYTES, ChildRanks, LocalSite, RunningLaunch, check_ranks
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan, read_work
from pytest_distbench.records.wire import Lines, RankWord, rank_event, short_address


def start(plan: LaunchPlan, rank: int, place: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", place["DOES"]])


def test_a_launch_ends_with_its_last_rank_and_has_each_exit_code(tmp_path: Path) -> None:
    started = ChildRanks({0: {"DOES": "exit 3"}, 1: {"DOES": "kill -9 $$"}}, start).start(make_plan(tmp_path))
    assert set(started.pids()) <= {0, 1}
    assert started.drivers() == []

    wait_for(lambda: started.poll() is not None)

    ended = started.poll()
    assert ended is not None
    assert ended.codes == {0: 3, 1: -9}
    assert started.pids() == {}


class Sleepers:
    """Launches ranks that sleep; a launch in flight, too."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.escaped: list[subprocess.Popen[bytes]] = []
        self.readable, self.writable = os.pipe()

    def start(self, plan: LaunchPlan) -> Sleepers:
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        self.started = [subprocess.Popen(command, start_new_session=True) for _ in range(plan.processes)]
        self.escaped = [subprocess.Popen(command, start_new_session=True)]
        return self

    def fileno(self) -> int:
        return self.readable

    def poll(self) -> Exit | None:
        codes = [process.poll() for process in self.started]
        return Exit(codes=dict(enumerate(codes))) if None not in codes else None  # type: ignore[arg-type]

    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in enumerate(self.started)}

    def drivers(self) -> list[int]:
        return []

    def abandon(self) -> None:
        os.write(self.writable, b"x")

    def leftovers(self) -> list[psutil.Process]:
        return [psutil.Process(process.pid) for process in self.escaped]


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    made = Sleepers()
    yield made
    for process in [*made.started, *made.escaped]:
        process.kill()
        process.wait()
    os.close(made.readable)
    os.close(made.writable)


@pytest.fixture
def site(sleepers: Sleepers, tmp_path: Path) -> Iterator[LocalSite]:
    made = LocalSite(sleepers, make_plan(tmp_path))
    made.start()
    yield made
    made.close()


def test_the_plan_has_the_address_of_the_site_and_is_removed_with_it(sleepers: Sleepers, tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    site = LocalSite(sleepers, plan)
    site.start()
    stored = msgspec.json.decode(plan.files.plan.read_bytes(), type=LaunchPlan, dec_hook=read_work)
    with socket.socket(socket.AF_UNIX) as rank, short_address(Path(stored.address)) as address:
        rank.connect(address)
        rank.sendall(msgspec.json.encode(rank_event("hello", 1, 0.0)) + b"\n")
        while not site.heard.ranks_up:
            site.listen(60.0)
    assert site.heard.ranks_up == {1}
    assert plan.files.plan.stat().st_mode & 0o077 == 0
    site.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.spawn
def test_a_signal_reaches_the_process_of_that_rank_alone(site: LocalSite, sleepers: Sleepers) -> None:
    site.signal(1, signal.SIGTERM)

    assert sleepers.started[1].wait(60) == -signal.SIGTERM
    assert site.running() == {0}


@pytest.mark.spawn
def test_ended_ranks_have_exit_codes_and_leftovers_are_killed(site: LocalSite, sleepers: Sleepers) -> None:
    os.write(sleepers.writable, b"x")  # somebody is to ask how they ended
    assert site.listen(60.0) == []
    assert site.ended is None
    assert site.end([0, 1]).codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert site.running() == frozenset()

    assert site.clear().stuck == {}
    assert sleepers.escaped[0].wait(60) == -signal.SIGKILL


def limit(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))


def test_more_files_than_may_be_held_are_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1024, 4096)
    check_ranks(480)

    text = (
        r"a rank of 481 has up to 1,026 files .* may have 1,024 .*: run ulimit -n 1026 .* \(without root up to 4,096\)"
    )
    with pytest.raises(LauncherError, match=text):
        check_ranks(481)

    limit(monkeypatch, 1024, resource.RLIM_INFINITY)
    with pytest.raises(LauncherError, match=r"\(without root up to any number\)"):
        check_ranks(481)

    limit(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    check_ranks(10**6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("channel")


class NoLauncher:
    """Nothing is started."""

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        raise NotImplementedError

    def leftovers(self) -> list[psutil.Process]:
        return []


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[tuple[LocalSite, socket.socket]]:
    """The site of two ranks, and a socket of one that says what it likes."""
    plan = make_plan(folder)
    with socket.socket(socket.AF_UNIX) as rank:
        site = LocalSite(NoLauncher(), plan)
        try:
            with short_address(plan.files.control) as address:
                rank.connect(address)
            yield site, rank
        finally:
            site.close()


def say(rank: int, kind: RankWord = "hello", text: str = "") -> bytes:
    return msgspec.json.encode(rank_event(kind, rank, 0.0, text)) + b"\n"


def ranks_heard(site: LocalSite) -> set[int]:
    """Who has said hello, once the first has."""
    end = time.monotonic() + 60
    while not site.heard.ranks_up and time.monotonic() < end:
        site.listen(0.0)
    return site.heard.ranks_up


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_from_a_rank_are_survived(folder: Path, chunks: list[bytes]) -> None:
    with connected(folder) as (site, rank):
        for chunk in chunks:
            rank.sendall(chunk + b"\n")
        rank.sendall(b"\n" + say(1))

        assert ranks_heard(site) == {1}


def test_events_of_ranks_there_are_not_are_ignored(tmp_path: Path) -> None:
    with connected(tmp_path) as (site, rank):
        for number in (-1, 2, 10**9, 0):
            rank.sendall(say(number))

        assert ranks_heard(site) == {0}


def test_an_endless_line_is_dropped_and_the_next_one_understood(tmp_path: Path) -> None:
    with connected(tmp_path) as (site, rank):
        rank.setblocking(False)
        waiting = b"x" * 4 * LONGEST_LINE_BYTES + b"\n" + say(1)
        end = time.monotonic() + 60
        while waiting and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                waiting = waiting[rank.send(waiting[:65536]) :]
            site.listen(0.0)

        assert ranks_heard(site) == {1}


def test_what_a_rank_could_not_end_is_kept_and_its_process_is_the_one_that_has_connected(tmp_path: Path) -> None:
    with connected(tmp_path) as (site, rank):
        rank.sendall(say(1) + say(1, "done") + say(1, "remark", "threads it had started still ran"))
        ranks_heard(site)

        assert site.heard.remarks() == {1: "threads it had started still ran"}

    # Else a body that has got hold of the line could have pytest end any process
    with connected(tmp_path) as (site, rank):
        rank.sendall(b'{"kind": "hello", "rank": 0, "at": 0.0, "pid": 1}\n' + say(1))
        ranks_heard(site)

        assert site.pids == {1: os.getpid()}


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"half a li"
    taken = Lines()

    assert [line for i in range(0, len(data), size) for line in taken.take(data[i : i + size])] == lines


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
    with simulated(Host(cards=TWO_GPUS)):
        told = local.stuck_ranks({0: 6, 1: 7}, after_s=25.2, on_gpu=True)

        assert "GPU memory" not in local.stuck_ranks({1: 7}, after_s=25.2, on_gpu=False)[1]
        assert local.gpu_memory([7, 8]) == {7: 3 * 2**30}
    assert told == {
        1: "rank 1 (pid 7) is still there 25 s after it was killed: state D, the kernel waits for a device or a file "
        "system, and holds 3 GiB of GPU memory; ps -o pid,stat,wchan 7 shows when it has gone"
    }
    with simulated(HOSTS["driver not loaded"]):
        assert "state D" in local.stuck_ranks({1: 7}, after_s=25.2, on_gpu=True)[1]
