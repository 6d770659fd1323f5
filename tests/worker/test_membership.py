"""How a rank meets the others; the rest of a group's life is in tests/launch/starters/test_contract.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEETING = """
import os, socket, sys, threading, time
from pytest_distbench.worker import membership

def rendezvous(url, timeout):
    socket.create_connection(address).close()
    yield (url,)

free = socket.create_server(("127.0.0.1", 0))
address = free.getsockname()
free.close()
os.environ |= {"MASTER_ADDR": address[0], "MASTER_PORT": str(address[1]), "TORCHELASTIC_USE_AGENT_STORE": "False"}
membership.rendezvous = rendezvous
listeners = []
threading.Timer(0.2, lambda: listeners.append(socket.create_server(address))).start()
print(membership._meet(1, timeout_s=60))
"""

JOINING = """
import torch, torch.distributed as dist
from pytest_distbench.worker import membership

class Store(dist.HashStore):
    def __repr__(self):
        raise RuntimeError("failed to format addr")

def logged(backend, **options):
    print(backend, bool(f"{options}"))

membership._meet = lambda rank, timeout_s: Store()
dist.init_process_group = logged
membership.join_group("gloo", rank=0, world_size=1, timeout_s=60, device=torch.device("cpu"))
"""


@pytest.mark.spawn
@pytest.mark.parametrize(("code", "printed"), [(MEETING, "env://"), (JOINING, "gloo True")], ids=["meeting", "joining"])
def test_a_rank_asks_for_a_store_when_somebody_listens_there_and_joins_with_one_that_can_be_logged(
    code: str, printed: str
) -> None:
    """In a process of its own: torch has no place in this one."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == (f"{printed}\n", "")
