"""The forkserver that has torch loaded: how it is made of this process, how it is seen to have died, how it ends.

The agent of the warm launcher has one, and the controller of an elastic job under the fast engine.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pytest_distbench.launch.site import processes
from pytest_distbench.records.launch_files import LONGEST_SOCKETS_FOLDER
from pytest_distbench.worker import preloaded, python_internals

PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel.distributed",
    "torch.optim",
    "torch._dynamo",
    "numpy",
    "psutil",
    "pytest",
    "pytest_distbench.worker.main",
    "pytest_distbench.launch.starters.group",
]
"""Imported once, for the forkserver too. torch._dynamo because a process's first optimizer imports it, for seconds; the
group because each rank begins in it, and torch's agents come along."""

LOST = 255
"""multiprocessing's exit code for a process whose forkserver has died."""

_READ_AT_START = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|LD|PYTHON|TORCH|PYTORCH|ATEN|DNNL|ONEDNN|MALLOC|CUDA|NCCL|GLOO)_?\w*|PATH"
)

_SET_HERE = frozenset({"OMP_NUM_THREADS", "PYTHONPATH", "TORCH_EXTENSIONS_DIR"})
"""What a rank has of its own: the first is not the user's in the process that loads torch, and the sides of a pair
differ in their paths, which nothing reads there."""

_HASH_SEED = "PYTHONHASHSEED"

_DEATH_S = 0.5
_HELPERS_S = 3.0
"""How long the forkserver's exit handlers may take."""


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries read when they are loaded: a change asks for a process that loads them anew."""
    return {k: v for k, v in variables.items() if _READ_AT_START.fullmatch(k) and k not in _SET_HERE}


def variables_of_parent(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of a process that loads torch, and that ranks are forked from. They have their own.

    But Python's hashes are the parent's in all of them, and by chance they would make the order of a set repeat in all
    launches of a run, and be another one in the next.
    """
    return {_HASH_SEED: "1", **variables, "OMP_NUM_THREADS": "1"}


def preload(names: Sequence[str] = PRELOAD) -> None:
    """Import what the forkserver is to have. Nothing of it uses CUDA, which no fork could use then."""
    os.environ[preloaded.NVML_CHECK] = "1"
    gc.disable()  # going through torch's objects again and again, while they become more, is a fifth of its import
    for name in names:
        with contextlib.suppress(ImportError):  # a rank that needs it says so
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


def start(sockets: Path, *, semaphores: str, projects: Sequence[str], close: Collection[int] = ()) -> None:
    """Fork this process's forkserver. To be called while there is one thread.

    Its semaphores' names begin so that a later run finds what this one could not unlink. Descriptors that only this
    process is to have are closed in it.
    """
    sockets.mkdir(mode=0o700, exist_ok=True)
    name = str(sockets)
    if len(os.fsencode(name)) > LONGEST_SOCKETS_FOLDER:
        name = f"/proc/{os.getpid()}/fd/{os.open(sockets, os.O_RDONLY | os.O_DIRECTORY)}"  # open as long as we live
    python_internals.place_sockets(name, semaphores=f"/{semaphores}")
    preloaded.PROJECTS.extend(projects)
    multiprocessing.get_context("forkserver").set_forkserver_preload([preloaded.LOADER])
    python_internals.fork_forkserver(close=close)


def is_alive() -> bool:
    """Whether this process's forkserver lives."""
    pid = python_internals.forkserver_pid()
    return pid is not None and processes.is_alive(pid)


def has_died() -> bool:
    """Whether the exit codes of processes were made up by multiprocessing, because the forkserver is gone or goes."""
    deadline = time.monotonic() + _DEATH_S
    while is_alive():  # its pipes close a moment before it counts as dead
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def let_helpers_end() -> None:
    """Close what keeps forkserver and resource tracker alive; whether they do end is the caller's.

    The forkserver runs the exit handlers of the modules it has imported, the tracker unlinks what locks are left.
    """
    pid = python_internals.forkserver_pid()
    python_internals.let_helpers_end()
    deadline = time.monotonic() + _HELPERS_S
    while pid is not None and processes.is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.005)
