"""What the parent of this host's ranks, and what keeps their stores, tell pytest."""

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
from pytest_distbench.worker.membership import backends
print(json.dumps([backends(), dist.is_gloo_available(), dist.is_mpi_available()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, gloo, mpi = json.loads(done.stdout)

    assert set(found) == {"gloo", "nccl", "mpi", "ucc", "xccl", "fake"}
    assert (found["gloo"], found["mpi"], found["fake"]) == (gloo, mpi, True)


NO_STORE = """
import socket, threading
from pytest_distbench.launch.starters import loopback
from pytest_distbench.launch.starters.warm import _HostParent

class DistNetworkError(RuntimeError):
    pass

def refuse():
    raise DistNetworkError("no network address\\nException raised from run at socket.cpp:820\\nframe #0: ...")

loopback._new_store = refuse
parent = _HostParent.__new__(_HostParent)
parent.pid, parent._ready = 2**30, None
parent._stores, theirs = socket.socketpair()
threading.Thread(target=loopback.keep_stores, args=[theirs.detach()], daemon=True).start()
for _ in range(2):
    try:
        parent.make_store()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.spawn
def test_a_store_that_cannot_be_made_is_told_and_costs_nothing_else() -> None:
    """In a process of its own: torch has no place in this one."""
    done = subprocess.run([sys.executable, "-c", NO_STORE], capture_output=True, text=True, check=True)

    told = "LauncherError DistNetworkError: no network address; the ranks of a host meet at 127.0.0.1: is its loopback"
    assert [line[: len(told)] for line in done.stdout.splitlines()] == [told, told]
