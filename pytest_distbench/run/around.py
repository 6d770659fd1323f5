"""What happens around every launch, whatever it runs: the table of it, and the one place that all launches pass.

A conftest or a plugin adds what should happen by one row: ``AROUND["mine"] = Mine``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pytest_distbench.errors import ExtensionError, blame, expect, show
from pytest_distbench.launch.starters.table import LAUNCHERS, Hosting
from pytest_distbench.records.case import CPUS, NODES, OVERSUBSCRIBED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.network import NETWORK
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.run.gpus import GpusAround
from pytest_distbench.run.layout import LayoutAround
from pytest_distbench.run.network import NetworkAround
from pytest_distbench.run.oversubscribed import OversubscribedAround
from pytest_distbench.run.quota import QuotaAround
from pytest_distbench.run.settings import Settings
from pytest_distbench.run.utilisation import UtilisationAround


class Witness(Protocol):
    """What was seen around one launch, or one pair of launches."""

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """A launch that is over with what was seen; of a pair it is asked for each of the two."""


class Around(Protocol):
    """Something that is done, or looked at, around every launch of a run."""

    def during(self, plan: LaunchPlan, hosting: Hosting) -> AbstractContextManager[Witness]:
        """Do it while a launch runs; of a pair the plan is this tree's.

        Args:
            plan: of the launch.
            hosting: what this host has to do with it.

        Raises:
            LauncherError: it cannot be done, so that the launch would mean nothing.
        """

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """What it makes of a case that is launched so, by name: cases that differ in it are never compared."""

    def close(self) -> None:
        """Let go of what it holds. Another launch may come nevertheless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundSetup:
    """What a row is made of.

    Attributes:
        settings: of the run.
        on_progress: shows one line while something is waited for.
    """

    settings: Settings
    on_progress: Callable[[str], None]


def _make_gpus(setup: AroundSetup) -> Around:
    return GpusAround(setup.settings.gpus, on_progress=setup.on_progress)


AROUND: dict[str, Callable[[AroundSetup], Around]] = {
    "gpus": _make_gpus,
    "utilisation": lambda setup: UtilisationAround(),
    OVERSUBSCRIBED: lambda setup: OversubscribedAround(),
    CPUS: lambda setup: QuotaAround(),
    NETWORK: lambda setup: NetworkAround(),
    NODES: lambda setup: LayoutAround(LAUNCHERS[setup.settings.launcher], setup.settings.engine),
}
"""By name; what comes first is outermost."""


class Surroundings:
    """All that happens around the launches of one run."""

    def __init__(self, setup: AroundSetup) -> None:
        self._all: dict[str, Around] = {}
        for name, make in AROUND.items():
            with blame(f"AROUND[{name!r}]"):
                self._all[name] = make(setup)

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Callable[[LaunchRecord], LaunchRecord]]:
        """Do all of it while a launch runs. Gives what makes a record complete, once that is over."""
        with contextlib.ExitStack() as stack:
            seen = {name: stack.enter_context(around.during(plan, hosting)) for name, around in self._all.items()}

            def describe(record: LaunchRecord) -> LaunchRecord:
                for name, witness in reversed(seen.items()):
                    record = expect(LaunchRecord, witness.describe(record), f"AROUND[{name!r}]: describe")
                return record

            yield describe

    def conditions(self, request: LaunchRequest) -> dict[str, str]:
        """What all of it makes of a case."""
        found: dict[str, str] = {}
        for name, around in self._all.items():
            with blame(f"AROUND[{name!r}]"):
                given = dict(around.conditions(request))
            if not all(isinstance(text, str) for pair in given.items() for text in pair):
                wanted = "wanted texts by name, as {'cooling': 'low'}"
                raise ExtensionError(f"AROUND[{name!r}]: conditions gave {show(given)}; {wanted}")
            found |= given
        return found

    def close(self) -> None:
        """Let go of everything, also where one of them fails at it."""
        with contextlib.ExitStack() as stack:
            for name, around in self._all.items():
                stack.callback(blame(f"AROUND[{name!r}]")(around.close))
