"""A site that tests speak for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from pytest_distbench.launch.site.contract import Aftermath, Clocks, Exit, Heard
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import EventKind, RankEvent


class MadeUpSite:
    """Fulfils the contract without any process: its ranks say what a test says, and what is asked of them is kept."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.heard = Heard()
        self.clocks = Clocks()
        self.ended: Exit | None = None
        self.plan = plan
        self.arrived: list[RankEvent] = []
        self.asked: list[tuple[set[int], bytes]] = []
        self.signalled: list[tuple[int, signal.Signals]] = []
        self.ended_ranks: set[int] = set()
        self.left: dict[int, RankReport] = {}
        self._readable, self._writable = os.pipe()

    def say(self, rank: int, kind: EventKind, text: str = "") -> None:
        self.arrived.append(RankEvent(kind=kind, rank=rank, at=0.0, text=text))

    def fileno(self) -> int:
        return self._readable

    def start(self) -> None:
        pass

    def listen(self, timeout_s: float) -> list[RankEvent]:
        fresh, self.arrived = self.arrived, []
        self.heard.take(fresh)
        return fresh

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        self.asked.append((set(ranks), request))

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.signalled.append((rank, number))

    def running(self) -> frozenset[int]:
        return frozenset(range(self.plan.processes)) if self.ended is None else frozenset()

    def look(self) -> None:
        pass

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        pass

    def end(self, ranks: Iterable[int]) -> Exit:
        self.ended_ranks = set(ranks)
        self.ended = Exit()
        return self.ended

    def clear(self) -> Aftermath:
        return Aftermath()

    def fetch_output(self) -> None:
        pass

    def reports(self) -> dict[int, RankReport]:
        return self.left

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)
