"""The table of engines: what each can do, and how it is made. The rest of the code asks here, never for a name.

A new engine is a row, and a module that fulfils ``jobs/engines/contract.py``. pytest's process reads this module, so it
imports nothing of an engine: a row's ``make`` does, in the controller's process.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pytest_distbench.jobs.engines.advice import AGENTS, TORCHRUN, Advice
from pytest_distbench.jobs.engines.contract import Engine, EngineSetup
from pytest_distbench.machine import hardware
from pytest_distbench.records.elastic import ChangeKind
from pytest_distbench.records.record import Number
from pytest_distbench.releases import release_of, text

DEFAULT_ENGINE = "stock"

CHANGES: frozenset[ChangeKind] = frozenset(get_args(ChangeKind))
"""All kinds of change there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """How long an engine waits for something; or, where the name does not end in ``_s``, how often."""

    default: Number
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine, as the rest of the code sees it.

    Attributes:
        help: a few words on what it is.
        make: makes it, in the controller's process; imports what it needs, and hosts the store its nodes meet at.
        advice: what its failures mean.
        timers: by name. All engines have ``collective_s``, which workers take, and ``settle_s``, which the controller
            takes.
        changes: the kinds it can carry out.
        runs_scripts: it can run a script as it is.
        problem: why it cannot be used here; empty: it can.
        stand_in: the engine that takes its place then.
    """

    help: str
    make: Callable[[EngineSetup], Engine]
    advice: Advice
    timers: Mapping[str, Timer]
    changes: frozenset[ChangeKind] = CHANGES
    runs_scripts: bool = False
    problem: Callable[[], str] = lambda: ""
    stand_in: str = ""

    def all_timers(self, given: Mapping[str, Number]) -> dict[str, Number]:
        """Those that were given, and the defaults of the others, in the order of the row.

        They may be given for an engine that this one stands in for: what it does not have is left out, and what it
        takes no fraction of is rounded up.
        """
        found: dict[str, Number] = {}
        for name, timer in self.timers.items():
            value = given.get(name, timer.default)
            found[name] = math.ceil(value) if timer.is_whole else value
        return found


def torch_release() -> str:
    """The release of torch that is installed, ``torch 2.13``, without importing it."""
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
"""All that ``jobs/engines/fast_rendezvous.py`` takes from that module of torch, which is no public one."""


def _fast_problem() -> str:
    torch = importlib.util.find_spec("torch")  # found, not imported: pytest's process is without it
    return fast_problem(Path(torch.origin).parent / _RENDEZVOUS) if torch and torch.origin else "torch is not installed"


@functools.cache  # to read 1,500 lines takes some 30 ms
def fast_problem(rendezvous: Path) -> str:
    """Why the fast engine cannot be used with the torch that is installed; empty: it can."""
    nodes = list(ast.walk(ast.parse(rendezvous.read_text()))) if rendezvous.exists() else []
    known = {getattr(node, field, None) for node in nodes for field in ("name", "id", "attr", "arg")}
    lacking = ", ".join(sorted(FAST_PARTS - known))
    return f"{torch_release()} does not have, in torch/{_RENDEZVOUS}, {lacking}" if lacking else ""


def _make_fast(setup: EngineSetup) -> Engine:
    from pytest_distbench.jobs.engines.fast import FastEngine

    return FastEngine(setup)


def _make_stock(setup: EngineSetup) -> Engine:
    from pytest_distbench.jobs.engines.stock import TorchrunEngine

    return TorchrunEngine(setup)


ENGINES: dict[str, EngineKind] = {
    "stock": EngineKind(
        help="each node is the command line tool torchrun",
        make=_make_stock,
        advice=TORCHRUN,
        runs_scripts=True,
        timers={
            "last_call_s": Timer(default=1),  # torch: 30
            "keep_alive_s": Timer(default=1),  # torch: 5
            "keep_alive_attempts": Timer(default=3),
            "collective_s": Timer(default=30),
            "settle_s": Timer(default=120),
            "max_restarts": Timer(default=1000),  # not a time, and a setting that decides all the same; torchrun: 0
        },
    ),
    "fast": EngineKind(
        help="agents and workers from one process that has torch loaded, and timers below a second",
        make=_make_fast,
        advice=AGENTS,
        timers={
            "last_call_s": Timer(default=0.3, is_whole=False),
            "keep_alive_s": Timer(default=0.15, is_whole=False),
            "keep_alive_attempts": Timer(default=10),
            "poll_s": Timer(default=0.05, is_whole=False),
            "collective_s": Timer(default=30, is_whole=False),
            "settle_s": Timer(default=120, is_whole=False),
        },
        problem=_fast_problem,
        stand_in="stock",
    ),
}
"""By the name that ``elastic(..., engine=...)`` takes."""
