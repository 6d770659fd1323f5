"""Ranks on two hosts with processes, a network, files and clocks of their own: as on this one, and nothing stays there.

The first host sees the folder of the launch, the second does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support import hosts
from support.hosts import AHEAD_S, HostsLauncher, Namespaces
from support.launching import Launch
from support.processes import wait_for
from support.repositories import git

from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

BODIES = """
import os, signal, socket, subprocess, sys, time
import torch
import torch.distributed as dist

def measures(rank):
    rank.record("host", float(socket.gethostname() == f"host{rank.rank}"), better="exact", reduce="min")
    rank.record("node", rank.node, better="info", reduce="max")
    x = torch.ones(256)
    for _ in rank.timed("latency", warmup=1, iterations=5):
        dist.all_reduce(x)
    rank.record("sum", float(x.sum()), better="exact")
    print("said by", rank.rank)

def raises(rank):
    if rank.rank == 1:
        raise ValueError("a plan gone wrong")
    dist.barrier()

def is_killed(rank):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env={}, start_new_session=True)
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def hangs(rank):
    rank.barrier()
    if rank.rank == 1:
        time.sleep(1000)  # the culprit's line
    rank.barrier()
"""

LONG = """
    import subprocess, sys, time

    def body(rank):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env={}, start_new_session=True)
        rank.progress(rank=rank.rank)
        open(f"up{rank.rank}", "w").close()
        time.sleep(1000)

    def test_long(distbench):
        distbench.run(body)
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this host that the second host does not see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[list[Namespaces]]:
    try:
        process, found = hosts.start(tmp_path_factory.mktemp("hosts"), hidden)
    except OSError as error:
        pytest.skip(f"the kernel or this container does not let us make namespaces: {error}")
    with process:
        yield found
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def launch(
    two_hosts: list[Namespaces], hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Launch]:
    monkeypatch.setenv(hosts.VARIABLE, json.dumps([asdict(host) for host in two_hosts]))
    monkeypatch.setitem(LAUNCHERS, "hosts", hosts.row())
    (tmp_path / "bodies.py").write_text(BODIES)
    yield Launch(HostsLauncher(uuid.uuid4().hex, two_hosts), hidden, tmp_path / "bodies.py")
    assert_nothing_is_left(two_hosts)


def assert_nothing_is_left(two_hosts: list[Namespaces]) -> None:
    wait_for(lambda: not any(host.processes() for host in two_hosts), limit_s=30.0)
    assert [host.files() for host in two_hosts] == [[], []]


def test_ranks_of_two_hosts_measure_and_their_numbers_and_output_come_back(launch: Launch) -> None:
    record = launch("measures", working_dir=launch.file.parent)
    found = {m.key: m for m in record.measurements}

    assert (record.outcome, record.reason) == ("passed", "")
    assert (found["host"].value, found["node"].value, found["sum"].value) == (1.0, 1.0, 256 * 2.0**6)
    assert found["latency"].spread is not None
    assert found["latency"].spread.n == 5
    logs = [(Path(record.logs) / f"rank{rank}.log").read_text() for rank in (0, 1)]
    assert [log.splitlines()[-1] for log in logs] == ["said by 0", "said by 1"]  # torch misses a name server
    assert 0 < record.wall_s < min(AHEAD_S)
    assert all(0 <= seconds < record.wall_s for seconds in record.phases.values()), record.phases


def test_a_rank_killed_on_another_host_is_reported_and_its_children_end(launch: Launch) -> None:
    record = launch("is_killed", working_dir=launch.file.parent)

    assert record.reason == "rank 1 killed by SIGKILL"
    assert [f.is_victim for f in record.fates] == [False, True]


def test_a_hang_there_ends_at_the_time_out_and_shows_the_line_each_rank_is_at(launch: Launch) -> None:
    record = launch("hangs", timeout_s=4.0, working_dir=launch.file.parent)
    culprit = next(number for number, line in enumerate(BODIES.splitlines(), 1) if "culprit" in line)

    assert record.timed_out
    assert re.match(rf"hung in body, ended after \d\.\d s: rank 1 at bodies.py:{culprit} in hangs", record.reason)
    assert "; rank 0 waits in " in record.reason


CONFTEST = """
    from pytest_distbench.launch.starters import LAUNCHERS
    from support import hosts

    LAUNCHERS["hosts"] = hosts.row()
"""


@pytest.fixture
def run(pytester: pytest.Pytester, launch: Launch) -> Iterator[subprocess.Popen[str]]:
    """A run of pytest whose ranks are in their bodies, on both hosts."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(textwrap.dedent(LONG))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = [sys.executable, "-m", "pytest", "--distbench-launcher=hosts", "--world-size=2", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            wait_for(lambda: all((pytester.path / f"up{rank}").exists() for rank in range(2)), process)
            yield process
        finally:
            with contextlib.suppress(OSError):
                process.kill()


def test_ctrl_c_ends_the_ranks_of_all_hosts_and_what_they_started(
    run: subprocess.Popen[str], two_hosts: list[Namespaces]
) -> None:
    run.send_signal(signal.SIGINT)

    assert "KeyboardInterrupt" in run.communicate(timeout=60)[0]
    assert_nothing_is_left(two_hosts)


def test_nobody_outlives_a_pytest_that_is_killed(
    run: subprocess.Popen[str], two_hosts: list[Namespaces], launch: Launch
) -> None:
    run.kill()
    run.wait()
    assert_nothing_is_left(two_hosts)

    assert launch("measures", working_dir=launch.file.parent).outcome == "passed"


COMPARED = """
    import time

    def body(rank):
        rank.record("host", rank.node, better="exact", reduce="max")
        for _ in rank.timed("step", warmup=1, iterations=10):
            time.sleep(0.02)

    def test_step(distbench):
        distbench.run(body)
"""


@pytest.mark.nightly
def test_two_revisions_take_turns_on_the_same_hosts(
    pytester: pytest.Pytester, launch: Launch, two_hosts: list[Namespaces], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worktree of the other one has to lie where both hosts see it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    pytester.makeconftest(CONFTEST)
    test = pytester.makepyfile(test_it=textwrap.dedent(COMPARED))
    git(pytester.path, "init", "-q")
    git(pytester.path, "add", ".")
    git(pytester.path, "commit", "-qm", "fast")
    test.write_text(test.read_text().replace("0.02", "0.06"))
    command = ("--distbench-launcher=hosts", "--world-size=2", "--distbench-against=HEAD", "--distbench-launches=3")
    compared = pytester.runpytest_subprocess(*command, "--distbench-json=run.json")
    monkeypatch.setenv("TMPDIR", str(launch.directory))
    refused = pytester.runpytest_subprocess(*command)

    compared.assert_outcomes(failed=1)
    compared.stdout.re_match_lines([r"! +step +60\S* ms +20\S* ms .*"])
    [found] = read_run_record(pytester.path / "run.json").results
    assert {m.value for one in found.launches for m in one.measurements if m.name == "host"} == {1.0}
    refused.stdout.re_match_lines([r"host host1: ranks need .*/test_it.py, which this host does not see.*"])


def test_a_rank_that_raises_there_is_to_blame_and_shows_its_traceback(launch: Launch) -> None:
    record = launch("raises", working_dir=launch.file.parent)

    assert record.reason == "rank 1 raised ValueError: a plan gone wrong"
    assert [f.rank for f in record.fates] == [1, 0]
    assert record.fates[0].error is not None
    assert "bodies.py" in record.fates[0].error.traceback
