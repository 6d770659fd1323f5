"""How a rank meets the others, and its line; the rest of a group's life is in ``test_contract.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.plans import make_plan

from pytest_distbench.records.record import replace

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
print(membership._meet(1, timeout_s=60, in_namespaces=False))
"""

JOINING = """
import torch, torch.distributed as dist
from pytest_distbench.worker import membership

class Store(dist.HashStore):
    def __repr__(self):
        raise RuntimeError("failed to format addr")

def logged(backend, **options):
    print(backend, bool(f"{options}"))

membership._meet = lambda rank, timeout_s, in_namespaces: Store()
dist.init_process_group = logged
membership.join_group("gloo", rank=0, world_size=1, timeout_s=60, device=torch.device("cpu"))
"""


@pytest.mark.spawn
@pytest.mark.parametrize(("code", "printed"), [(MEETING, "env://"), (JOINING, "gloo True")], ids=["meeting", "joining"])
def test_a_rank_asks_for_a_store_when_somebody_listens_there_and_joins_with_one_that_can_be_logged(
    code: str, printed: str
) -> None:
    """Runs in its own process, as this one does not import torch."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == (f"{printed}\n", "")


MAKING = """
import os, sys, weakref
import torch, torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from pytest_distbench.worker.membership import keep_destroyed_groups, leave_group

class Written(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)

    def getBackendName(self):
        return "written"

def of_their_own(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("mine", of_their_own, devices="cpu")
dist.Backend.register_backend("written", Written, devices="cpu")
for made in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    alone = dict(store=dist.HashStore(), rank=0, world_size=1)
    keep_destroyed_groups()
    exec(made)
    groups = [weakref.ref(group) for group in distributed_c10d._world.pg_map]
    leave_group()
    print(len(groups), "left" if dist.is_initialized() else "destroyed", end=", ")
    if dist.is_initialized():
        dist.destroy_process_group()
    print(sum(group() is not None for group in groups), flush=True)
    os._exit(0)
"""
"""Each in a process of its own, which torch is loaded for once."""


@pytest.mark.spawn
def test_groups_of_gloo_are_kept_and_left_to_the_end_of_the_process_whatever_they_are_called() -> None:
    made = {
        'dist.init_process_group("gloo", **alone)': "1 left, 1",
        "dist.init_process_group(**alone)": "1 left, 1",
        "dist.init_process_group(**alone); dist.new_group([0]); dist.new_group([0])": "3 left, 3",
        "dist.init_process_group(**alone); device_mesh.init_device_mesh('cpu', (1, 1))": "1 left, 1",
        'dist.init_process_group("cpu:gloo", **alone)': "1 left, 1",
        'dist.init_process_group("mine", **alone)': "1 left, 1",
        'dist.init_process_group("cpu:mine,cuda:gloo", **alone)': "1 left, 1",
        'dist.init_process_group("fake", **alone | {"store": FakeStore()})': "1 left, 0",
        'dist.init_process_group("written", **alone)': "1 destroyed, 0",
        'dist.init_process_group(**alone); dist.new_group([0], backend="written")': "2 destroyed, 1",
        'dist.init_process_group(**alone); dist.new_group([0], backend="fake")': "2 left, 1",
    }
    done = subprocess.run([sys.executable, "-c", MAKING, *made], capture_output=True, text=True, check=True)

    # torch warns that hooks of groups that have more than one are not looked for
    assert dict(zip(made, done.stdout.splitlines(), strict=True)) == made


@pytest.mark.spawn
def test_a_rank_that_cannot_reach_its_line_says_so_in_its_log_and_to_whoever_started_it(tmp_path: Path) -> None:
    """It was started on another host than its socket; such ranks once killed themselves without a word."""
    plan = replace(
        make_plan(tmp_path, world_size=2),
        address=str(tmp_path / "elsewhere"),
        variables=dict(os.environ),
        python_path=sys.path,
    )
    plan.files.plan.write_bytes(msgspec.json.encode(plan))
    place = {"RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest_distbench.worker", "rank", str(plan.files.plan)],
        env={**os.environ, **place},
        capture_output=True,
        text=True,
    )
    text = "cannot reach pytest: No such file or directory"

    assert done.returncode == 1
    assert f"rank 1 on {os.uname().nodename} {text}" in done.stderr
    assert text in plan.files.log(1).read_text()
