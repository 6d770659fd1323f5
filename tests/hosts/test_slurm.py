"""Launches on the nodes of an allocation, with fakes of Slurm's programs; a real Slurm is in end_to_end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
import pytest
from support.launching import Launch
from support.processes import has_ended, wait_for

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.hosts import calls, slurm
from pytest_distbench.hosts.slurm import RELAY, Allocation, NodeParent, SlurmLauncher, read_allocation, start_step
from pytest_distbench.launch.starters import LauncherSetup
from pytest_distbench.launch.starters.parent import Order, Word
from pytest_distbench.machine import hardware

ALL = 'for node in $nodes; do SLURMD_NODENAME=$node "$@" & done; wait'
"""Starts a process for each node, and ends when they have ended."""


def write_srun(folder: Path, does: str) -> None:
    """Make one that does what is written, with the words behind its options as ``$@``, and the nodes as ``$nodes``.

    All words stand in ``srun.words`` then.
    """
    take = 'nodes=$(echo "$*" | tr " " "\n" | sed -n "s/--nodelist=//p" | tr "," " ")'
    keep = f'echo "$*" > {folder}/srun.words'
    skip = 'while [ "${1#--}" != "$1" ] || [ "$1" = srun ]; do shift; done'
    program = folder / "srun"
    program.write_text(f"#!/bin/sh\n{take}\n{keep}\n{skip}\n{does}\n")
    program.chmod(0o755)


@pytest.fixture
def reach_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(calls, "addresses", lambda: ["127.0.0.1"])


SCONTROL = """\
case "$2 $3" in
  "hostnames n[1-2]") printf "n1\\nn2\\n" ;;
  "job -d") echo "JobId=$4 NumNodes=2 AllocTRES=cpu=8,node=2${ALLOCATED:-} JOB_GRES=${GRES:-(null)}" ;;
  *) exit 1 ;;
esac"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Variables of a job on two nodes, with a fake scontrol."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{SCONTROL}\n")
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("told", "gpus"),
    [
        *(({"SLURM_GPUS_PER_NODE": given}, 4) for given in ("4", "a100:4", "a100:2,h100:2")),
        *(({"SLURM_GPUS_PER_NODE": given}, 0) for given in ("", "all")),
        # What the environment does not say of GPUs the job does
        ({"ALLOCATED": ",billing=8,gres/gpu=8,gres/gpu:a100=8"}, 4),
        ({"GRES": "gpu:8"}, 4),
        ({"GRES": "gpu:a100:8"}, 4),
        ({"GRES": "gpu:a100:4,gpu:h100:4,nic:2"}, 4),
        ({"GRES": "nic:8"}, 0),
        ({"ALLOCATED": ",gres/gpu=4", "GRES": "gpu:4"}, 2),
        ({}, 0),
    ],
)
def test_it_knows_its_nodes_and_their_gpus(variables: dict[str, str], told: dict[str, str], gpus: int) -> None:
    assert read_allocation({**variables, **told}) == Allocation(job="7", nodes=["n1", "n2"], gpus_per_node=gpus)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"SLURM_JOB_ID": ""}, r"SLURM_JOB_ID is not set: run it inside one, as salloc --nodes=2 pytest"),
        ({"PATH": "/nowhere"}, r"scontrol show hostnames n\[1-2\] does not answer: .* No such file .* 'scontrol'"),
        ({"SLURM_JOB_NODELIST": "x"}, r"scontrol show hostnames x ended with exit code 1"),
    ],
)
def test_a_missing_allocation_is_an_error_with_the_next_step(
    variables: dict[str, str], changes: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        read_allocation({**variables, **changes})


@pytest.mark.parametrize(
    ("allocation", "ranks", "on_gpus", "wanted"),
    [
        (Allocation(job="7", nodes="abcd"), 4, False, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        (Allocation(job="7", nodes="ab"), 5, False, [range(3), range(3, 5)]),
        (Allocation(job="7", nodes="ab", tasks_per_node=4), 4, False, [range(4)]),
        (Allocation(job="7", nodes="abcd", gpus_per_node=4), 8, True, [range(4), range(4, 8)]),
        (Allocation(job="7", nodes="ab", gpus_per_node=4), 2, False, [range(1), range(1, 2)]),
    ],
)
def test_ranks_fill_nodes_as_was_asked_or_by_their_gpus_or_in_equal_parts(
    allocation: Allocation, ranks: int, on_gpus: bool, wanted: list[range]
) -> None:
    assert allocation.layout(ranks, on_gpus=on_gpus) == wanted


def test_an_allocation_that_is_too_small_says_what_to_ask_for() -> None:
    with pytest.raises(ConfigurationError, match="8 ranks: job 7 has room for 4, 2 on each of 2 nodes"):
        Allocation(job="7", nodes="ab", gpus_per_node=2).layout(8, on_gpus=True)


WANTED: dict[str, Any] = {"gpu": False, "platform": "", "ranks": 2, "engine": ""}


@pytest.fixture
def two_nodes(reach_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "read_allocation", lambda _: Allocation(job="7", nodes=["n2", "n1"]))
    monkeypatch.setenv("SLURM_CPU_BIND", "of the batch")


@pytest.mark.spawn
@pytest.mark.usefixtures("two_nodes")
def test_the_hardware_is_that_of_the_nodes_from_one_step_on_all(tmp_path: Path) -> None:
    write_srun(tmp_path, f'test -z "$SLURM_CPU_BIND" || exit 1; {ALL}')

    environment, share_temporary = slurm.describe(**WANTED)
    assert environment.platform == hardware.cpu_class()
    assert share_temporary


@pytest.mark.spawn
@pytest.mark.usefixtures("two_nodes")
def test_a_node_that_is_not_up_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_srun(tmp_path, 'SLURMD_NODENAME=n1 "$@" & exec sleep 60')
    monkeypatch.setattr(calls, "CALL_S", 10.0)

    text = (
        r"the nodes of job 7 do not all report .*: 1 of 2 hosts have called \(n1\), and not n2 .*Are the nodes up \(sin"
    )
    with pytest.raises(ConfigurationError, match=text):
        slurm.describe(**WANTED)


DUMPS_VARIABLES = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


@pytest.mark.usefixtures("reach_here")
def test_the_processes_of_a_step_call_from_each_node_and_say_who_they_are(tmp_path: Path) -> None:
    write_srun(tmp_path, ALL)
    relay = [sys.executable, "-m", "pytest_distbench.hosts.relay"]
    step = start_step(
        ["n2", "n1"], lambda where: [*relay, *where], gpus=0, variables=os.environ, log=tmp_path / "log", session="s"
    )
    try:
        found = step.take()
        assert [caller.host for _, caller in found] == ["n2", "n1"]
        assert {caller.address for _, caller in found} == {"127.0.0.1"}
        assert step.poll() is None
        for line, _ in found:
            line.close()
    finally:
        step.kill()
    assert step.poll() is not None


def words_of_srun(folder: Path, *, gpus: int, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The words of srun, and the environment of what it starts."""
    write_srun(folder, '"$@"')
    step = start_step(
        ["n1"],
        lambda where: [sys.executable, "-c", DUMPS_VARIABLES, str(folder / "told")],
        gpus=gpus,
        variables={**os.environ, **variables},
        log=folder / "log",
        session="s",
        python_path=["/a", "", "/b"],
    )
    assert step.wait(60) == 0
    return (folder / "srun.words").read_text().split(), json.loads((folder / "told").read_text())


OF_THE_JOB = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_GPUS_PER_TASK": "1",  # salloc --ntasks-per-node=8 --gpus-per-task=1
    "SLURM_TRES_PER_TASK": "cpu=12,gres/gpu=1",  # the same since Slurm 24
    "SLURM_NTASKS_PER_GPU": "1",
    "SLURM_GPUS": "16",
    "SLURM_CPUS_PER_TASK": "12",
    "SRUN_CPUS_PER_TASK": "12",
    "SLURM_MEM_PER_GPU": "64000",
    "SLURM_GPU_BIND": "single:1",
    "SLURM_EXACT": "1",
    "SLURM_HINT": "nomultithread",
    "SLURM_THREADS_PER_CORE": "1",
}


@pytest.mark.usefixtures("reach_here")
def test_a_step_takes_over_nothing_of_what_the_jobs_tasks_were_given(tmp_path: Path) -> None:
    kept = {"MINE": "1", "SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "2"}
    _, told = words_of_srun(tmp_path, gpus=0, **OF_THE_JOB, **kept)

    assert OF_THE_JOB.keys() & told.keys() == set()
    assert {name: told[name] for name in kept} == kept
    assert (told["PYTHONPATH"], told["DISTBENCH_SESSION"]) == ("/a:/b", "s")


@pytest.mark.usefixtures("reach_here")
@pytest.mark.parametrize(("gpus", "wanted"), [(0, []), (4, ["--gpus-per-node=4", "--gpu-bind=none"])])
def test_each_process_of_a_step_has_all_gpus_of_its_node(tmp_path: Path, gpus: int, wanted: list[str]) -> None:
    words, _ = words_of_srun(tmp_path, gpus=gpus)

    assert [word for word in words if word.startswith("--gpu")] == wanted


BODIES = """
import json, os, sys
from pathlib import Path
from helper import VALUE

def describe(rank):
    import torch
    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    started_with = Path("/proc/self/environ").read_bytes().split(b"\\0")
    [node] = [entry.decode() for entry in started_with if entry.startswith(b"SLURMD_NODENAME=")]
    found = {
        "node": node.partition("=")[2], "pid": os.getpid(), "parent": parent(os.getppid()), "value": VALUE,
        "mine": os.environ.get("MINE"), "random": torch.rand(1).item(), "cwd": os.getcwd(),
        "files": len([fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]),
    }
    Path(rank.params["out"], f"{rank.rank}.json").write_text(json.dumps(found))

def exits(rank):
    os._exit(7)

def dumps(rank):
    os.abort()
"""


@pytest.fixture
def launcher(tmp_path: Path, reach_here: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLauncher]:
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


def places_of(launch: Launch, world_size: int = 2, **variables: str) -> list[dict[str, Any]]:
    record = launch("describe", params={"out": str(launch.directory)}, world_size=world_size, variables=variables)
    assert record.outcome == "passed", record.reason
    return [json.loads((launch.directory / f"{rank}.json").read_text()) for rank in range(world_size)]


@pytest.mark.spawn
def test_each_launch_has_new_processes_of_parents_that_stay_and_shares_nothing_with_the_one_before(
    launch: Launch,
) -> None:
    first = places_of(launch, MINE="1")
    (launch.directory / "helper.py").write_text("VALUE = 22")
    second = places_of(launch)

    assert [one["node"] for one in first] == ["n1", "n2"]
    assert [one["parent"] for one in first] == [one["parent"] for one in second]
    assert {one["pid"] for one in first}.isdisjoint(one["pid"] for one in second)
    assert [one["mine"] for one in (*first, *second)] == ["1", "1", None, None]
    assert [one["value"] for one in (*first, *second)] == [1, 1, 22, 22]
    assert len({one["random"] for one in (*first, *second)}) == 4
    assert sorted(one["files"] for one in first) == sorted(one["files"] for one in second)


@pytest.mark.spawn
def test_a_launch_on_more_nodes_keeps_its_parents(launch: Launch) -> None:
    two, three = places_of(launch, 2), places_of(launch, 3)

    assert [one["node"] for one in three] == ["n1", "n2", "n3"]
    assert [one["parent"] for one in three][:2] == [one["parent"] for one in two]


@pytest.mark.nightly
@pytest.mark.spawn
def test_a_launch_with_a_variable_of_libraries_makes_new_parents(launch: Launch) -> None:
    first, second = places_of(launch), places_of(launch, OMP_PROC_BIND="false")

    assert {one["parent"] for one in first}.isdisjoint(one["parent"] for one in second)


@pytest.mark.spawn
def test_a_node_whose_parent_was_killed_is_taken_last(launch: Launch) -> None:
    first = places_of(launch)
    victim = psutil.Process(first[0]["parent"])
    victim.kill()
    wait_for(lambda: has_ended(victim))

    second, all_of_them = places_of(launch), places_of(launch, 3)

    assert [one["node"] for one in second] == ["n2", "n3"]
    assert second[0]["parent"] == first[1]["parent"]
    assert [one["node"] for one in all_of_them] == ["n1", "n2", "n3"]


@pytest.mark.spawn
def test_a_parent_that_stands_still_is_named_and_the_next_launch_goes_without(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_FORK_S", 3.0)
    [first, _] = places_of(launch)
    os.kill(first["parent"], signal.SIGSTOP)
    try:
        with pytest.raises(LauncherError, match=r"1 of 2 hosts have called \(n2\), and not n1 within 3 s"):
            launch("describe", params={"out": str(launch.directory)})
        after = places_of(launch)
    finally:
        os.kill(first["parent"], signal.SIGCONT)

    assert [one["node"] for one in after] == ["n2", "n3"]


@pytest.mark.spawn
def test_a_node_that_starts_no_parent_is_left_out_as_long_as_there_are_others(launch: Launch, tmp_path: Path) -> None:
    write_srun(tmp_path, 'case "$nodes" in *n1*) echo n1 is down >&2; exit 1;; esac; ' + ALL)

    assert [one["node"] for one in places_of(launch, 1)] == ["n2"]
    with pytest.raises(LauncherError, match="n1 is down"):
        launch("describe", params={"out": str(launch.directory)}, world_size=3)


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("body", "says"), [("exits", "exit code 7"), pytest.param("dumps", "SIGABRT", marks=pytest.mark.nightly)]
)
def test_the_reason_says_how_a_rank_ended(launch: Launch, body: str, says: str) -> None:
    record = launch(body)

    assert record.outcome == "failed"
    assert says in record.reason


class SimulatedStep:
    pid = 7
    where = ("4711", "127.0.0.1")

    def poll(self) -> int | None:
        return None


class TheirEnd:
    """A node's parent that is made up."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line

    def heard(self) -> list[Order]:
        return [msgspec.json.decode(line, type=Order) for line in self.line.recv(4096).splitlines()]

    def say(self, word: Word) -> None:
        self.line.sendall(msgspec.json.encode(word) + b"\n")


@pytest.fixture
def ends() -> Iterator[tuple[NodeParent, TheirEnd]]:
    """Ours, which has been asked for a relay, and the parent's."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        node, there = NodeParent(ours, cast(Any, SimulatedStep())), TheirEnd(theirs)
        assert node.is_idle
        node.begin_fork(RELAY, *node.step.where)
        assert there.heard() == [Order(what="fork", function=RELAY, arguments=["4711", "127.0.0.1"], each=[{}])]
        there.say(Word(what="forked", pids=[42]))
        node.take_relay()
        yield node, there


def test_it_can_fork_a_relay_when_the_one_before_has_gone(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    assert not node.is_idle
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(0.01)

    there.say(Word(what="ended", pids=[42]))
    assert node.wait(10) == 0
    assert node.is_idle
    assert node.wait(0.01) == 0  # nothing is waited for twice


def test_a_relay_that_does_not_end_is_ended_by_its_parent_which_stays(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    there.say(Word(what="ended", pids=[42], code=-9))
    node.kill()

    assert there.heard() == [Order(what="kill", pid=42)]
    assert node.is_idle


def test_a_parent_that_does_not_even_end_its_relay_is_hung_up_on(
    ends: tuple[NodeParent, TheirEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_END_S", 0.01)
    node, there = ends
    node.kill()

    assert there.heard() == [Order(what="kill", pid=42)]
    assert there.line.recv(9) == b""
    assert not node.is_idle
    assert node.wait(0.01) == 0


def test_a_parent_that_has_gone_is_not_idle_and_not_waited_for(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    there.line.close()

    assert node.wait(10) == 0
    assert not node.is_idle


def test_a_child_that_could_not_be_forked_is_an_error(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    there.say(Word(what="forked", trouble="BlockingIOError: [Errno 11] Resource temporarily unavailable"))

    with pytest.raises(LauncherError, match="BlockingIOError"):
        node.fork("a:b")
