"""A step and its relays, with a stand-in for srun; a real Slurm is in tests/end_to_end/test_slurm.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.site.describe import HostDescription
from pytest_distbench.launch.starters import slurm
from pytest_distbench.launch.starters.allocation import Allocation
from pytest_distbench.launch.starters.slurm import Step
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.record import replace


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for srun, which does what is written into it with the words behind its options as ``$@``."""
    program = tmp_path / "srun"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_addresses", lambda: ["127.0.0.1"])
    return program


def write(program: Path, does: str) -> None:
    take = 'nodes=$(echo "$*" | tr " " "\n" | sed -n "s/--nodelist=//p" | tr "," " ")'
    skip = 'while [ "${1#--}" != "$1" ] || [ "$1" = srun ]; do shift; done'
    program.write_text(f"#!/bin/sh\n{take}\n{skip}\n{does}\n")
    program.chmod(0o755)


ALL = 'for node in $nodes; do SLURMD_NODENAME=$node "$@" & done; wait'


@contextlib.contextmanager
def step(tmp_path: Path, *nodes: str) -> Iterator[Step]:
    log = tmp_path / "log"
    made = Step(nodes, log=log, variables=dict(os.environ), session="s")
    try:
        yield made
    finally:
        made.cancel()
        assert made.process.poll() is not None


def test_the_relays_of_a_step_call_and_say_who_they_are(tmp_path: Path, srun: Path) -> None:
    write(srun, ALL)
    with step(tmp_path, "n1", "n2") as made:
        calls = made.answer()

    assert sorted(calls) == ["n1", "n2"]
    assert {call.hello.address for call in calls.values()} == {"127.0.0.1"}
    assert len({call.hello.port for call in calls.values()}) == 2
    for call in calls.values():
        call.hang_up()


def test_a_step_that_ends_before_its_relays_call_is_told_with_what_srun_said(tmp_path: Path, srun: Path) -> None:
    write(srun, "echo srun: error: Invalid partition >&2; exit 1")
    with (
        step(tmp_path, "n1") as made,
        pytest.raises(LauncherError, match=r"ended before its relays .*Invalid partition"),
    ):
        made.answer()


def test_a_node_from_which_nobody_calls_is_named(tmp_path: Path, srun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_CALL_S", 3.0)
    write(srun, 'for node in ${nodes% *}; do SLURMD_NODENAME=$node "$@" & done; sleep 60')
    with (
        step(tmp_path, "n1", "n2") as made,
        pytest.raises(LauncherError, match="no relay has called from n2 within 3 s"),
    ):
        made.answer()


def test_a_stranger_who_calls_is_not_heard(tmp_path: Path, srun: Path) -> None:
    write(srun, f'DISTBENCH_RELAY_SECRET=wrong SLURMD_NODENAME=n1 "$@" & {ALL}')
    with step(tmp_path, "n1") as made:
        calls = made.answer()

    assert list(calls) == ["n1"]
    calls["n1"].hang_up()


@pytest.fixture
def allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "read_allocation", lambda _: Allocation(job="7", nodes=["n1", "n2"]))


def says(*platforms: str, torch: str = "2.13.0") -> str:
    """A step in which each node says that it is of a class; the last one runs this torch."""
    environment = hardware.describe(platform_name="x", gpus=Gpus(), software={"torch": "2.13.0"}, variables={})
    lines = []
    for number, platform in enumerate(platforms, 1):
        software = {"torch": torch if number == len(platforms) else "2.13.0"}
        described = replace(environment, platform=platform, software=software)
        lines.append(msgspec.json.encode(HostDescription(host=f"n{number}", environment=described)).decode())
    return "cat <<'END'\n" + "\n".join(reversed(lines)) + "\nEND"


@pytest.mark.usefixtures("allocation")
def test_the_hardware_is_that_of_the_nodes(srun: Path) -> None:
    write(srun, says("cpu-a", "cpu-a"))

    assert slurm.describe(gpu=False, platform=None).platform == "cpu-a"


@pytest.mark.usefixtures("allocation")
def test_nodes_of_several_classes_are_of_the_one_that_is_named(srun: Path) -> None:
    write(srun, says("cpu-a", "cpu-b"))

    assert slurm.describe(gpu=False, platform="mine").platform == "mine"


@pytest.mark.usefixtures("allocation")
@pytest.mark.parametrize(
    ("does", "gpu", "told"),
    [
        (
            says("cpu-a", "cpu-b"),
            False,
            r"several classes of hardware: .* n1: 'cpu-a'; n2: 'cpu-b'",
        ),
        (says("cpu-a", "cpu-a", torch="2.12.0"), False, r"run other software: n1: .*2\.13.*; n2: .*2\.12"),
        (says("cpu-a", "cpu-a"), True, r"--gpu: no GPU is visible on n1 of job 7: allocate some"),
        (says("cpu-a"), False, r"1 of 2 nodes of job 7 say what they are"),
        (
            "echo No module named pytest_distbench >&2; exit 1",
            False,
            r"0 of 2 nodes .*No module named",
        ),
    ],
    ids=["classes", "software", "no GPU", "one is silent", "not installed"],
)
def test_nodes_that_cannot_be_compared_are_refused_before_the_first_launch(
    srun: Path, does: str, gpu: bool, told: str
) -> None:
    write(srun, does)

    with pytest.raises(ConfigurationError, match=told):
        slurm.describe(gpu=gpu, platform=None)


@pytest.mark.usefixtures("allocation")
def test_nodes_that_do_not_answer_are_not_waited_for_without_end(srun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_CALL_S", 0.5)
    write(srun, "exec sleep 60")

    with pytest.raises(ConfigurationError, match=r"job 7 do not say what they are within 1 s: does srun"):
        slurm.describe(gpu=False, platform=None)


def test_a_call_that_is_cancelled_ends_its_step(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    slurm._cancel(process)

    assert process.returncode == -15
