"""What the nodes of an allocation say that they are, with a stand-in for srun."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from support.srun import write_srun

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.site.describe import HostDescription
from pytest_distbench.launch.starters import nodes, step
from pytest_distbench.launch.starters.allocation import Allocation
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.record import replace


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nodes, "read_allocation", lambda _: Allocation(job="7", nodes=["n1", "n2"]))


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
def test_the_hardware_is_that_of_the_nodes(tmp_path: Path) -> None:
    write_srun(tmp_path, says("cpu-a", "cpu-a"))

    assert nodes.describe(gpu=False, platform=None).platform == "cpu-a"


@pytest.mark.usefixtures("allocation")
def test_nodes_of_several_classes_are_of_the_one_that_is_named(tmp_path: Path) -> None:
    write_srun(tmp_path, says("cpu-a", "cpu-b"))

    assert nodes.describe(gpu=False, platform="mine").platform == "mine"


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
    tmp_path: Path, does: str, gpu: bool, told: str
) -> None:
    write_srun(tmp_path, does)

    with pytest.raises(ConfigurationError, match=told):
        nodes.describe(gpu=gpu, platform=None)


@pytest.mark.usefixtures("allocation")
def test_nodes_that_do_not_answer_are_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_CALL_S", 0.5)
    write_srun(tmp_path, "exec sleep 60")

    with pytest.raises(ConfigurationError, match=r"job 7 do not say what they are within 1 s: does srun"):
        nodes.describe(gpu=False, platform=None)
