"""The launchers of this host, and the table of all: a row makes one, and nothing is imported before it is made."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.launch.starters import LAUNCHERS, LauncherSetup
from pytest_distbench.launch.starters.torchrun import exit_codes
from pytest_distbench.launch.starters.warm import WarmLauncher
from pytest_distbench.records.options import DEFAULT_LAUNCHER, OPTIONS


@pytest.mark.parametrize("name", ["warm", "torchrun"])
def test_a_row_makes_the_launcher_of_its_name(tmp_path: Path, name: str) -> None:
    made = LAUNCHERS[name].make(LauncherSetup(directory=tmp_path, session="cookie"))

    assert (made.name, made.session) == (name, "cookie")


def test_the_default_is_a_row_that_can_do_everything() -> None:
    assert LAUNCHERS[DEFAULT_LAUNCHER].holds_two


def test_the_help_names_every_launcher() -> None:
    assert all(name in OPTIONS["launcher"].summary for name in ("warm", "torchrun", DEFAULT_LAUNCHER))


def test_reading_the_table_imports_nothing_of_ours_but_the_table() -> None:
    code = """
import sys, pytest_distbench.launch.starters
print(sorted(name for name in sys.modules if name.startswith("pytest_distbench") or name in ("torch", "psutil")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    package = "pytest_distbench"
    names = ["extensions", "launch", "launch.starters"]
    assert done.stdout.strip() == str([package, *(f"{package}.{name}" for name in names)])


@pytest.mark.spawn
def test_the_backends_are_those_this_torch_was_built_with() -> None:
    """Runs in its own process, as this one does not import torch."""
    code = """
import json, torch.distributed as dist
from pytest_distbench.worker.membership import backends
print(json.dumps([backends(), dist.is_gloo_available(), dist.is_mpi_available()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, gloo, mpi = json.loads(done.stdout)

    assert set(found) == {"gloo", "nccl", "mpi", "ucc", "xccl", "fake"}
    assert (found["gloo"], found["mpi"], found["fake"]) == (gloo, mpi, True)


@pytest.mark.spawn
def test_the_wait_for_torch_is_shown_while_it_lasts_and_counted_once(tmp_path: Path) -> None:
    shown: list[str] = []
    waited: list[float] = []
    setup = LauncherSetup(
        directory=tmp_path, session=uuid.uuid4().hex, on_progress=shown.append, on_loaded=waited.append
    )
    launcher = WarmLauncher(setup)
    try:
        launcher.prepare({})
        parent = launcher._parent
        assert parent is not None
        assert parent.wait_until_ready() == parent.wait_until_ready()
    finally:
        launcher.close()

    assert len(waited) == 1
    assert {*shown} == {"loading torch"}


NO_STORE = """
import socket, threading
from pytest_distbench.launch.starters import loopback
from pytest_distbench.launch.starters.parent import Parent
from pytest_distbench.launch.starters.warm import _HostParent

class DistNetworkError(RuntimeError):
    pass

def refuse():
    raise DistNetworkError("no network address\\nException raised from run at socket.cpp:820\\nframe #0: ...")

loopback._new_store = refuse
parent = _HostParent.__new__(_HostParent)
parent.pid, parent._ready = 2**30, None
ours, theirs = socket.socketpair()
parent._stores = Parent(ours, 0)
threading.Thread(target=loopback.keep_stores, args=[theirs.detach()], daemon=True).start()
for _ in range(2):
    try:
        parent.make_store()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.spawn
def test_a_store_that_cannot_be_made_is_an_error_and_the_parent_lives_on() -> None:
    """Runs in its own process, as this one does not import torch."""
    done = subprocess.run([sys.executable, "-c", NO_STORE], capture_output=True, text=True, check=True)

    text = "LauncherError DistNetworkError: no network address; the ranks of a host connect at 127.0.0.1: is its loopb"
    assert [line[: len(text)] for line in done.stdout.splitlines()] == [text, text]


TABLE = """
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
"""


def test_the_closing_table_names_ranks_and_exit_codes() -> None:
    assert exit_codes(TABLE + TABLE.replace(": 1 (", ": 0 (").replace("-9", "3")) == {1: -9, 0: 3}


@given(st.text(max_size=300))
def test_any_text_may_stand_for_the_table(text: str) -> None:
    assert isinstance(exit_codes(text), dict)


def test_what_torch_loads_in_every_rank_for_our_rendezvous_brings_no_site_along() -> None:
    """It did for a while: a millisecond for each module, in each rank of each launch."""
    code = "import sys, pytest_distbench.launch.starters.torchrun; print(*[m for m in sys.modules if '.site.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {name.rpartition(".")[2] for name in done.stdout.split()} == {"processes"}
