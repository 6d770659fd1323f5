"""The table of kinds of launch: how each is run, compared and judged; and what happens around one, as a contract.

A new kind is a record of its own, below :class:`~pytest_distbench.records.plan.Work`, and a row:
``LAUNCH_KINDS[Mine] = LaunchKind(...)``.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ConfigurationError, expect
from pytest_distbench.extensions import Table
from pytest_distbench.launch.controlled import launch_command
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.launch.supervise import Arm, Side, run_in_turns, supervise
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import Command, LaunchPlan, LaunchRequest, Ranks, Work

InTurns = Callable[[Sequence[Arm]], list[LaunchRecord | None]]
"""Runs launches that are to be compared; None for those that were left out because one did not pass."""


def one_after_the_other(arms: Sequence[Arm]) -> list[LaunchRecord | None]:
    """Launches that have no blocks to take turns at, in an order that is drawn anew each time."""
    found: dict[int, LaunchRecord] = {}
    for index in random.sample(range(len(arms)), len(arms)):
        if all(record.outcome == "passed" for record in found.values()):
            plan, side = arms[index]
            found[index] = run_launch(plan, side)
    return [found.get(index) for index in range(len(arms))]


HERE = Hosting()
"""Of processes that run on this host, and import torch themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchKind:
    """One kind of launch, as the rest of the code sees it.

    Attributes:
        run: runs one. Whatever becomes of it is in the record.
        in_turns: runs those that are to be compared.
        why_alone: why they cannot be, in a clause; empty: they can.
        hosting: what this host has to do with it; None: what the launcher says that starts its ranks.
        why_no_ranks: why it has no ranks of one group, which torch's profiler could see, and of which one could be
            given the terminal, or be the only one, in a clause; empty: it has.
        why_no_delay: why no slowdown can be planted in one, in a clause; empty: it can.
        open_s: an answer that is open gets more launches only while those so far took less, if the user says nothing.
        most_open: the most launches that an open answer is worth, if the user says nothing.
        most_stored: the most launches that an update stores, whatever their noise, if the user says nothing.
        launcher: of the work and the name of the run's launcher of ranks: the name that its baselines carry.
    """

    run: Callable[[LaunchPlan, Side], LaunchRecord]
    in_turns: InTurns = one_after_the_other
    why_alone: str = ""
    hosting: Hosting | None = HERE
    why_no_ranks: str = ""
    why_no_delay: str = ""
    open_s: float = math.inf
    most_open: float = math.inf
    most_stored: float = math.inf
    launcher: Callable[[Any, str], str]

    def hosted_by(self, launcher: Hosting) -> Hosting:
        return launcher if self.hosting is None else self.hosting


LAUNCH_KINDS: Table[type[Work], LaunchKind] = Table(
    "launch kinds",
    {
        Ranks: LaunchKind(
            run=supervise,
            in_turns=run_in_turns,
            hosting=None,
            launcher=lambda work, launcher: launcher,
        ),
        Command: LaunchKind(
            run=launch_command,
            why_no_ranks="a command starts its processes itself",
            launcher=lambda work, launcher: "command",
        ),
    },
)
"""By the type of what a launch runs."""


def kind_of(work: Work) -> LaunchKind:
    """The row of what a launch runs; :class:`ConfigurationError` where it has none."""
    if (kind := LAUNCH_KINDS.get(type(work))) is None:
        name, known = type(work).__name__, ", ".join(row.__name__ for row in LAUNCH_KINDS)
        raise ConfigurationError(
            f"LAUNCH_KINDS of pytest_distbench/run/kinds.py has no row for {name}; it has rows for {known}. Add it "
            f"where {name} is defined: LAUNCH_KINDS[{name}] = LaunchKind(...)"
        )
    return kind


def run_launch(plan: LaunchPlan, side: Side) -> LaunchRecord:
    return expect(LaunchRecord, kind_of(plan.work).run(plan, side), f"LAUNCH_KINDS[{type(plan.work).__name__}]: run")


Describe = Callable[[LaunchRecord], LaunchRecord]
"""The record of a launch that is over -> the same with what was seen around it; of a pair it is asked for each."""


class Around:
    """Something that is done, or looked at, around every launch of a run."""

    def ready(self, plan: LaunchPlan, hosting: Hosting, folder: Path) -> LaunchPlan:
        """The plan of a launch that passes it, with what ranks need of it.

        Args:
            folder: of the run.
        """
        del hosting, folder
        return plan

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Do it while a launch runs; of a pair the plan is this tree's. Raises :class:`LauncherError` where it cannot
        be done, so that the launch would mean nothing.
        """
        del plan, hosting
        yield lambda record: record

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """What it makes of a case that is launched so, by name: cases that differ in it are never compared."""
        del request
        return {}

    def close(self) -> None:
        """Let go of what it holds. Another launch may come nevertheless."""
