"""What the ranks of a launch have said, and what follows from that."""

from __future__ import annotations

from pytest_distbench.records.wire import EventKind, RankEvent


class Heard:
    """All that the ranks of a launch have said, and when their lines ended, in the controller's time."""

    def __init__(self) -> None:
        self.events: list[RankEvent] = []
        self.closed_at: dict[int, float] = {}

    def ranks_up(self) -> set[int]:
        """Ranks that have said hello."""
        return self._who_said("hello")

    def ranks_in_body(self) -> set[int]:
        """Ranks that have begun their body."""
        return {event.rank for event in self.events if event.kind == "phase" and event.text == "body"}

    def ranks_done(self) -> set[int]:
        """Ranks that have said how they ended."""
        return self._who_said("failed", "skipped", "done")

    def ranks_lost(self) -> set[int]:
        """Ranks whose line ended before they said how they ended: they have died."""
        return set(self.closed_at) - self.ranks_done() if self.closed_at else set()

    def said(self, rank: int) -> str:
        """What a rank that failed said on the line; empty where it left a report instead."""
        return next((e.text for e in self.events if e.rank == rank and e.kind == "failed" and e.text), "")

    def remarks(self) -> dict[int, str]:
        """Rank -> what is to be said of it though it has passed: what it could not end, what a thread of it raised."""
        found: dict[int, list[str]] = {}
        for event in self.events:
            if event.kind == "remark" and event.text not in found.setdefault(event.rank, []):
                found[event.rank].append(event.text)
        return {rank: "; ".join(texts) for rank, texts in found.items()}

    def is_holding(self) -> bool:
        """Whether a rank has not passed, and so waits to be ended."""
        return bool(self._who_said("failed", "skipped"))

    def last_phase(self, rank: int) -> str:
        """The phase a rank said it entered last."""
        phases = [event.text for event in self.events if event.rank == rank and event.kind == "phase"]
        return phases[-1] if phases else "start"

    def _who_said(self, *kinds: EventKind) -> set[int]:
        return {event.rank for event in self.events if event.kind in kinds}
