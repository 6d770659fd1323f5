"""Engines: their interface and their table. No other module names one.

An engine starts and ends the nodes of a job, and reports what their agents do. It decides nothing. A new engine is a
row, and a module that fulfils :class:`Engine`. pytest's process reads this module, so the module imports no
engine: a row's ``make`` does, in the controller's process. The output of nodes is read from pipes as it comes, line by
line with its time.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, get_args

from pytest_distbench.elastic.records import ChangeKind, ElasticJob, event
from pytest_distbench.launch.starters import by_name
from pytest_distbench.machine import hardware
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import Number
from pytest_distbench.records.wire import Event
from pytest_distbench.releases import release_of, text

_LINE_END = re.compile(rb"\r\n|\n|\r")
_READ_BYTES = 2**16
_END_S = 2.0


class NodeOutputs:
    """Reads what all nodes of a job print, and copies it to the agents' logs."""

    def __init__(self, files: LaunchFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._lines: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def open(self, slot: int) -> tuple[int, int]:
        """Return pipes for the stdout and the stderr of a new node; the caller closes them."""
        theirs = []
        for _ in range(2):
            ours, descriptor = os.pipe()
            theirs.append(descriptor)
            thread = threading.Thread(target=self._follow, args=(slot, ours), daemon=True)
            thread.start()
            self._threads.append(thread)
        return theirs[0], theirs[1]

    def take(self) -> list[Event]:
        """Return the complete lines since the last call, as events. Never blocks."""
        found = []
        while not self._lines.empty():
            found.append(self._lines.get())
        return found

    def finish(self) -> None:
        """Wait, a moment at most, until the output of nodes that have ended is read."""
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, slot: int, descriptor: int) -> None:
        rest = b""
        with open(descriptor, "rb", buffering=0) as pipe, open(self._files.agent_log(slot), "ab", buffering=0) as log:
            while data := pipe.read(_READ_BYTES):
                t = self._clock()
                log.write(data)
                *lines, rest = _LINE_END.split(rest + data)
                for line in lines:
                    self._lines.put(event("printed", t=t, slot=slot, text=line.decode(errors="replace")))
        if rest:
            self._lines.put(event("printed", t=self._clock(), slot=slot, text=rest.decode(errors="replace")))


LOOPBACK = "127.0.0.1"
STORE_S = 60.0  # how long agents and workers wait for the store
MAX_RESTARTS = 1000
"""Limit of restarts: torchrun counts one for a join if a worker loses its peers before its agent sees the new node."""


class CannotGoOn(Exception):
    """The job has failed; the message says why."""


class Engine(Protocol):
    """Starts, signals and ends the nodes of one elastic job."""

    def join(self, slot: int) -> None:
        """Start a node. Returns at once."""

    def leave(self, slot: int) -> None:
        """Ask a node to leave. Returns at once."""

    def kill(self, slot: int) -> None:
        """End all processes of a node at once, as if it was lost."""

    def crash(self, slot: int) -> None:
        """Kill the workers of a node, but not its agent."""

    def stop(self, slot: int) -> None:
        """Suspend all processes of a node."""

    def go_on(self, slot: int) -> None:
        """Resume the processes of a suspended node."""

    def poll(self) -> list[Event]:
        """Return the events since the last call that agents do not write themselves. Never blocks.

        Raises :class:`CannotGoOn` if the engine itself has broken down.
        """

    def log(self, slot: int) -> str:
        """Return the last lines that the agents of a slot have printed."""

    def close(self) -> None:
        """End all nodes."""


Causes = Mapping[str, float]
"""Sentence on a cause of a long rendezvous and the setting to change -> seconds it may take, or 0 if not the cause."""

_KNOBS = {
    "detect": (
        "nobody noticed: survivors notice a lost node when a collective fails, so set "
        "init_process_group(timeout=...); it includes the start of a new node"
    ),
    "stop": "workers took this long to end: a handler of SIGTERM must end soon",
    "process_start": "processes took this long to start: is the host out of cores or memory?",
    "import": "imports of a new process: is Python's environment on a slow disk, or are there fewer cores than nodes?",
    "group_init": "workers waited for each other in init_process_group: did one start much later, or die meanwhile?",
    "build": "what the body does before its checkpoint is loaded: data, model, the first optimizer of a process",
    "checkpoint_load": "loading the checkpoint: its size, and the disk it is on",
    "first_step": "the time from the group or the checkpoint to the first step: is something compiled or loaded?",
}


_STORE_S = 60  # timeout of the store of torch's rendezvous, by default


def _of_torchs_rendezvous(change: Event, job: ElasticJob) -> Causes:
    last_call = job.timers["last_call_s"]
    silent = job.timers["keep_alive_s"] * job.timers["keep_alive_attempts"]
    is_below_most = change.after is not None and change.after < job.most
    return {
        f"last_call_timeout ({last_call:g} s): below MAX nodes every rendezvous waits this long for more": (
            last_call if is_below_most else 0
        ),
        f"keep_alive_interval x keep_alive_max_attempt ({silent:g} s): the others wait this long for a lost node": (
            silent if change.kind in ("kill", "leave") else 0
        ),
        f"the store's timeout ({_STORE_S} s): agents waited for a value that nobody published; is "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set?": _STORE_S,
    }


DEFAULT_ENGINE = "stock"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine: how it is made, its timers, and what its failures mean.

    Attributes:
        make: makes the engine, in the controller's process, from the job's plan and, for a script, the outputs of its
            nodes. It imports what the engine needs, and hosts the store at which its nodes meet.
        timers: default timers by name: seconds if the name ends in ``_s``, else a number of times. Those whose default
            is an ``int`` are whole. All engines have ``collective_s``, for workers, and ``settle_s``, for the
            controller.
        problem: returns why the engine cannot be used here, or "".
        stand_in: name of the engine that is used instead if there is a problem.

    Sentences for failures, each with a remedy:
        split: the job has fallen into two; ``{timers}`` stands for its timers.
        unnoticed: a node is gone, and no survivor has restarted.
        hang_on_join: nodes have met, and none has joined a group.
        no_meeting: nodes have not even met.
        restarts: an agent has no restarts left, of ``{limit}``; "" if the engine has no limit.
        knobs: part of a recovery, other than the rendezvous -> why it may be long, and what to change.
    """

    help: str
    make: Callable[[LaunchPlan, NodeOutputs | None], Engine]
    timers: Mapping[str, Number]
    split: str
    unnoticed: str
    hang_on_join: str
    no_meeting: str
    in_rendezvous: Callable[[Event, ElasticJob], Causes]
    restarts: str
    knobs: Mapping[str, str]
    changes: frozenset[ChangeKind] = frozenset(get_args(ChangeKind))
    runs_scripts: bool = False
    problem: Callable[[], str] = lambda: ""
    stand_in: str = ""

    def all_timers(self, given: Mapping[str, Number]) -> dict[str, Number]:
        """The given timers, and defaults of the others, in the order of the row.

        They may be given for an engine that this one replaces: timers that it lacks are left out, and those that must
        be whole are rounded up.
        """
        found: dict[str, Number] = {}
        for name, usual in self.timers.items():
            value = given.get(name, usual)
            found[name] = math.ceil(value) if isinstance(usual, int) else value
        return found


def torch_release() -> str:
    """The installed release of torch, such as ``torch 2.13``, found without importing torch."""
    return f"torch {text(release_of(hardware.installed_version('torch')))}"


_RENDEZVOUS = "distributed/elastic/rendezvous/dynamic_rendezvous.py"
FAST_PARTS = frozenset(
    {
        "DynamicRendezvousHandler", "RendezvousSettings", "RendezvousTimeout", "_BackendRendezvousStateHolder",
        "cache_duration", "_delay", "get_method_name", "_node_desc_generator", "_this_node", "_state_holder",
        "_op_executor", "_stop_heartbeats", "participants", "wait_list", "redundancy_list", "_Action",
        "REMOVE_FROM_PARTICIPANTS", "REMOVE_FROM_WAIT_LIST", "REMOVE_FROM_REDUNDANCY_LIST", "ERROR_TIMEOUT", "FINISH",
    }
)  # fmt: skip
"""Names in torch's private module of the rendezvous that ``elastic/engines/fast_agent.py`` uses."""


def _fast_problem() -> str:
    torch = importlib.util.find_spec("torch")  # found, not imported: pytest's process is without it
    return fast_problem(Path(torch.origin).parent / _RENDEZVOUS) if torch and torch.origin else "torch is not installed"


@functools.cache  # to read 1,500 lines takes some 30 ms
def fast_problem(rendezvous: Path) -> str:
    nodes = list(ast.walk(ast.parse(rendezvous.read_text()))) if rendezvous.exists() else []
    known = {getattr(node, field, None) for node in nodes for field in ("name", "id", "attr", "arg")}
    lacking = ", ".join(sorted(FAST_PARTS - known))
    return f"{torch_release()} does not have, in torch/{_RENDEZVOUS}, {lacking}" if lacking else ""


_STOCK = EngineKind(
    help="each node is the command-line tool torchrun",
    make=by_name("pytest_distbench.elastic.engines.nodes:TorchrunEngine"),
    runs_scripts=True,
    timers={
        "last_call_s": 1,  # torch: 30
        "keep_alive_s": 1,  # torch: 5
        "keep_alive_attempts": 3,
        "collective_s": 30,
        "settle_s": 120,
        "max_restarts": 1000,  # not a time, and a setting that decides all the same; torchrun: 0
    },
    split=(
        "Its heartbeats came too late ({timers}), so the others count it as lost, without a message of torch. "
        "Use longer timers, or a machine with less load"
    ),
    unnoticed=(
        "Scale-down unnoticed: no survivor restarted. torchrun restarts workers when they fail, not when a node falls "
        "silent: their collectives need init_process_group(timeout=...), and no retries"
    ),
    hang_on_join=(
        "With torch 2.13 set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for the agents; and the store must not be on a node "
        "that may leave"
    ),
    no_meeting=(
        "No rendezvous: agents wait for each other. Is a lost node still counted (keep-alive interval times "
        "attempts), or is MIN larger than the number of nodes?"
    ),
    in_rendezvous=_of_torchs_rendezvous,
    restarts=(
        "--max-restarts={limit}, in {changes} changes of membership. torchrun also counts a join if a worker loses "
        "its peers before its agent notices the new node: allow ten restarts for every possible change"
    ),
    knobs={
        **_KNOBS,
        "stop": (
            f"{_KNOBS['stop']}, and TORCH_ELASTIC_SHUTDOWN_TIMEOUT says how long torchrun waits before it kills them "
            "(30 s)"
        ),
        "process_start": "torchrun took so long to start processes: is the host out of cores or memory?",
    },
)

ENGINES: dict[str, EngineKind] = {
    "stock": _STOCK,
    # torch's agents in processes of ours, which meet by the same rendezvous, at a store of ours
    "fast": replace(
        _STOCK,
        help="agents and workers from one process that has torch loaded, and timers below a second",
        make=by_name("pytest_distbench.elastic.engines.nodes:FastEngine"),
        runs_scripts=False,
        timers={
            "last_call_s": 0.3,
            "keep_alive_s": 0.15,
            "keep_alive_attempts": 10,
            "poll_s": 0.05,
            "collective_s": 30.0,
            "settle_s": 120.0,
        },
        problem=_fast_problem,
        stand_in="stock",
        unnoticed=(
            "Scale-down unnoticed: no survivor restarted. Agents restart workers when they fail, not when a node falls "
            "silent: their collectives need init_process_group(timeout=...), and no retries"
        ),
        hang_on_join="Do the others wait for a lost worker in init_process_group? Its time limit is collective_s",
        restarts="",
        knobs=_KNOBS,
    ),
}
"""Engines by their name in ``elastic(..., engine=...)``."""
