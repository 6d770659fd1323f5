"""What the process that starts ranks knows of torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.spawn
def test_the_backends_are_those_this_torch_was_built_with() -> None:
    """In a process of its own: torch has no place in this one."""
    code = """
import json, torch.distributed as dist
from pytest_distbench.launch.starters.group import backends
print(json.dumps([backends(), dist.is_gloo_available(), dist.is_mpi_available()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, gloo, mpi = json.loads(done.stdout)

    assert set(found) == {"gloo", "nccl", "mpi", "ucc", "xccl", "fake"}
    assert (found["gloo"], found["mpi"], found["fake"]) == (gloo, mpi, True)
