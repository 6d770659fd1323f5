"""How the ranks of a launch are spread over hosts, where the user has said so: other layouts measure other links."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_distbench.launch.starters.contract import Engine
from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.records.case import RANKS, RANKS_PER_NODE
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest


class Nothing:
    """What was seen."""

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """Nothing was."""
        return record


@dataclass(frozen=True, slots=True)
class LayoutAround:
    """The layout of each launch. Where hosts have one rank each, which is the default, nobody need say it."""

    engine: Engine | None

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Nothing]:
        """Nothing is done."""
        del plan, hosting
        yield Nothing()

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The ranks that a host is filled with."""
        if self.engine is None or self.engine.ranks_per_node == 1 or request.work.kind != RANKS:
            return {}
        return {RANKS_PER_NODE: str(self.engine.ranks_per_node)}

    def close(self) -> None:
        """It holds nothing."""
