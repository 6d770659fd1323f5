"""The agent process: what it tells pytest when it cannot start ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
from pytest_distbench.launch.starters import agent, group

class DistNetworkError(RuntimeError):
    pass

def refuse():
    raise DistNetworkError("no network address\\nException raised from run at socket.cpp:820\\nframe #0: ...")

group.LoopbackRendezvous = refuse
served = agent._Agent.__new__(agent._Agent)  # without the thread that ends its process
served.kept = []
reply = served._run(agent.Request(plan="plan.json", processes=2))
print(reply.kind, reply.codes, reply.died, reply.trouble)
"""


@pytest.mark.spawn
def test_a_group_that_cannot_even_be_made_is_told_and_costs_no_agent() -> None:
    """In a process of its own: torch has no place in this one."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(
        "finished {} False DistNetworkError: no network address; the ranks of a host meet at 127.0.0.1: is its loop"
    )
