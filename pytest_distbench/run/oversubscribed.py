"""Launches of more ranks than this host has cores: what they compute counts, and their clocks are only shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace


@dataclass(frozen=True, slots=True)
class Crowd:
    """One launch."""

    is_oversubscribed: bool

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """With what scatters from launch to launch as information, if ranks had to share cores."""
        if not self.is_oversubscribed:
            return record
        shown = [replace(m, better="info") if m.is_noisy else m for m in record.measurements]
        return replace(record, measurements=shown)


class OversubscribedAround:
    """Whether the ranks of each launch share cores."""

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Crowd]:
        """Nothing is done."""
        del hosting
        yield Crowd(plan.cores is not None)

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The cores that there were."""
        return {} if request.cores is None else {OVERSUBSCRIBED: f"{request.cores}-cores"}

    def close(self) -> None:
        """It holds nothing."""
