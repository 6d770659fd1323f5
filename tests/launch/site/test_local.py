"""The site on this host: ranks are processes here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import psutil
import pytest
from support.plans import make_plan
from support.processes import wait_for

from pytest_distbench.launch.site import Exit
from pytest_distbench.launch.site.local import ChildRanks, LocalSite
from pytest_distbench.records.plan import LaunchPlan, read_work
from pytest_distbench.records.wire import rank_event, short_address


def start(plan: LaunchPlan, rank: int, place: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", place["DOES"]])


def test_the_launch_has_ended_when_the_last_rank_has_and_tells_how_each_did(tmp_path: Path) -> None:
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


def test_the_plan_tells_ranks_where_their_line_is_and_is_gone_with_the_site(sleepers: Sleepers, tmp_path: Path) -> None:
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
def test_what_is_ended_is_told_and_what_is_left_over_is_cleared(site: LocalSite, sleepers: Sleepers) -> None:
    os.write(sleepers.writable, b"x")  # somebody is to ask how they ended
    assert site.listen(60.0) == []
    assert site.ended is None
    assert site.end([0, 1]).codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert site.running() == frozenset()

    assert site.clear().stuck == {}
    assert sleepers.escaped[0].wait(60) == -signal.SIGKILL
