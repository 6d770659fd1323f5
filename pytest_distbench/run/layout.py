"""Launches whose ranks live on several hosts: the same ranks on fewer hosts are another measurement."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_distbench.launch.starters.contract import Engine
from pytest_distbench.launch.starters.table import Hosting, LauncherKind
from pytest_distbench.records.case import NODES
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.run.kinds import kind_of


class Anywhere:
    """One launch: where its ranks live changes nothing of what they tell."""

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """As it is."""
        return record


class LayoutAround:
    """On how many hosts the ranks of each launch live."""

    def __init__(self, launcher: LauncherKind, engine: Engine | None = None) -> None:
        self._hosting = launcher
        layout: Callable[..., Sequence[int]] = launcher.layout or (lambda ranks, *, on_gpus: [ranks])
        self._layout = functools.cache(layout if engine is None else functools.partial(layout, engine=engine))

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Anywhere]:
        """Nothing is done."""
        del plan, hosting
        yield Anywhere()

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The hosts and the ranks on each, ``2x4``, where there are several hosts.

        Raises:
            ConfigurationError: there are too few.
        """
        if kind_of(request.work).hosted_by(self._hosting) is not self._hosting:
            return {}
        layout = self._layout(request.work.processes(request.world_size), on_gpus=request.device == "cuda")
        return {NODES: layout_text(layout)} if len(layout) > 1 else {}

    def close(self) -> None:
        """It holds nothing."""


def layout_text(layout: Sequence[int]) -> str:
    """Hosts times ranks on each: ``2x4``; where the last has fewer, ``1x4+1x3``."""
    return "+".join(f"{len([*hosts])}x{ranks}" for ranks, hosts in itertools.groupby(layout))
