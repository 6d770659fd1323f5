"""Launches from parents that are kept, with a stand-in for srun: all nodes are this host."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.launching import Launch
from support.processes import wait_for
from support.srun import ALL, write_srun

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.starters import calls, slurm
from pytest_distbench.launch.starters.slurm import Allocation, SlurmLauncher
from pytest_distbench.launch.starters.table import LauncherSetup

pytestmark = pytest.mark.spawn

BODIES = """
import json, os, sys
from pathlib import Path
from helper import VALUE

def tells(rank):
    import torch
    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    started_with = Path("/proc/self/environ").read_bytes().split(b"\\0")
    [node] = [entry.decode() for entry in started_with if entry.startswith(b"SLURMD_NODENAME=")]
    told = {
        "node": node.partition("=")[2], "pid": os.getpid(), "parent": parent(os.getppid()), "value": VALUE,
        "mine": os.environ.get("MINE"), "random": torch.rand(1).item(), "cwd": os.getcwd(),
        "files": len([fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]),
    }
    Path(rank.params["out"], f"{rank.rank}.json").write_text(json.dumps(told))

def exits(rank):
    os._exit(7)

def dumps(rank):
    os.abort()
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLauncher]:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(calls, "addresses", lambda: ["127.0.0.1"])
    monkeypatch.setattr(slurm, "read_allocation", lambda _: Allocation(job="7", nodes=["n1", "n2", "n3"]))
    write_srun(tmp_path, ALL)
    before = set(psutil.Process().children(recursive=True))  # launchers of other tests
    made = SlurmLauncher(LauncherSetup(directory=tmp_path, session=f"slurm-{tmp_path.name}"))
    yield made
    made.close()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture
def launch(launcher: SlurmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    (tmp_path / "bodies.py").write_text(BODIES)
    (tmp_path / "helper.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    return Launch(launcher, tmp_path, tmp_path / "bodies.py")


def told(launch: Launch, world_size: int = 2, **variables: str) -> list[dict[str, Any]]:
    record = launch("tells", params={"out": str(launch.directory)}, world_size=world_size, variables=variables)
    assert record.outcome == "passed", record.reason
    return [json.loads((launch.directory / f"{rank}.json").read_text()) for rank in range(world_size)]


def test_each_launch_has_new_processes_of_parents_that_stay_and_shares_nothing_with_the_one_before(
    launch: Launch,
) -> None:
    first = told(launch, MINE="1")
    (launch.directory / "helper.py").write_text("VALUE = 22")
    second = told(launch)

    assert [one["node"] for one in first] == ["n1", "n2"]
    assert [one["parent"] for one in first] == [one["parent"] for one in second]
    assert {one["pid"] for one in first}.isdisjoint(one["pid"] for one in second)
    assert [one["mine"] for one in (*first, *second)] == ["1", "1", None, None]
    assert [one["value"] for one in (*first, *second)] == [1, 1, 22, 22]
    assert len({one["random"] for one in (*first, *second)}) == 4
    assert sorted(one["files"] for one in first) == sorted(one["files"] for one in second)


def test_a_launch_on_more_nodes_keeps_its_parents_and_one_with_a_variable_of_libraries_makes_new_ones(
    launch: Launch,
) -> None:
    two, three = told(launch, 2), told(launch, 3)

    assert [one["node"] for one in three] == ["n1", "n2", "n3"]
    assert [one["parent"] for one in three][:2] == [one["parent"] for one in two]

    first, second = told(launch), told(launch, OMP_PROC_BIND="false")

    assert {one["parent"] for one in first}.isdisjoint(one["parent"] for one in second)


def test_a_node_whose_parent_was_killed_is_taken_last(launch: Launch) -> None:
    first = told(launch)
    victim = psutil.Process(first[0]["parent"])
    victim.kill()
    wait_for(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE)

    second, all_of_them = told(launch), told(launch, 3)

    assert [one["node"] for one in second] == ["n2", "n3"]
    assert second[0]["parent"] == first[1]["parent"]
    assert [one["node"] for one in all_of_them] == ["n1", "n2", "n3"]


def test_a_parent_that_stands_still_is_named_and_the_next_launch_goes_without(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_FORK_S", 3.0)
    [first, _] = told(launch)
    os.kill(first["parent"], signal.SIGSTOP)
    try:
        with pytest.raises(LauncherError, match=r"1 of 2 hosts have called \(n2\), and not n1 within 3 s"):
            launch("tells", params={"out": str(launch.directory)})
        after = told(launch)
    finally:
        os.kill(first["parent"], signal.SIGCONT)

    assert [one["node"] for one in after] == ["n2", "n3"]


def test_a_node_that_starts_no_parent_is_left_out_as_long_as_there_are_others(launch: Launch, tmp_path: Path) -> None:
    write_srun(tmp_path, 'case "$nodes" in *n1*) echo n1 is down >&2; exit 1;; esac; ' + ALL)

    assert [one["node"] for one in told(launch, 1)] == ["n2"]
    with pytest.raises(LauncherError, match="n1 is down"):
        launch("tells", params={"out": str(launch.directory)}, world_size=3)


@pytest.mark.parametrize(("body", "says"), [("exits", "exit code 7"), ("dumps", "SIGABRT")])
def test_how_a_rank_has_ended_is_told(launch: Launch, body: str, says: str) -> None:
    record = launch(body)

    assert record.outcome == "failed"
    assert says in record.reason
