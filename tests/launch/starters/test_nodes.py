"""What the nodes of an allocation say that they are, with a stand-in for srun; a real Slurm is in test_slurm.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.starters import calls, slurm
from pytest_distbench.launch.starters.contract import HostsWanted
from pytest_distbench.launch.starters.slurm import Allocation
from pytest_distbench.machine import hardware

pytestmark = pytest.mark.spawn

WANTED = HostsWanted(gpu=False, platform=None, ranks=2)
SRUN = """#!/bin/sh
test -z "$SLURM_CPU_BIND" || exit 1
nodes=$(echo "$*" | tr " " "\\n" | sed -n "s/--nodelist=//p" | tr "," " ")
while [ "${1#--}" != "$1" ]; do shift; done
"""


@pytest.fixture(autouse=True)
def allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "read_allocation", lambda _: Allocation(job="7", nodes=["n2", "n1"]))
    monkeypatch.setenv("SLURM_CPU_BIND", "of the batch")


def write_srun(folder: Path, does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for srun, with what is to run on each node as ``$@``."""
    program = folder / "srun"
    program.write_text(SRUN + does)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_hardware_is_that_of_the_nodes_from_one_step_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_srun(tmp_path, 'for node in $nodes; do SLURMD_NODENAME=$node "$@" & done; wait', monkeypatch)

    found = slurm.describe(WANTED)
    assert found.environment.platform == hardware.cpu_class()
    assert found.share_temporary


def test_a_node_that_is_not_up_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_srun(tmp_path, 'SLURMD_NODENAME=n1 "$@" & exec sleep 60', monkeypatch)
    monkeypatch.setattr(calls, "CALL_S", 10.0)

    told = r"the nodes of job 7 do not all say .*: 1 of 2 hosts have called \(n1\), and not n2 .*Are the nodes up \(sin"
    with pytest.raises(ConfigurationError, match=told):
        slurm.describe(WANTED)
