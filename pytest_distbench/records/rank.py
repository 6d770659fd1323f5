"""How one rank fared: the report it leaves behind, and its fate as told with or without that."""

from __future__ import annotations

from typing import Literal

from pytest_distbench.records.fingerprint import RankFingerprint
from pytest_distbench.records.load import Load
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.record import Record

Outcome = Literal["passed", "failed", "skipped"]

HUNG = "hung"
"""How a rank ended that did not go on."""

MOMENTS = ("begin", "end")
"""Among the phases of a report: stamps, where the others are durations."""

Phase = Literal["start", "import", "rendezvous", "body", "teardown", "exit"]


class ErrorReport(Record, frozen=True, kw_only=True):
    """An exception as one rank saw it."""

    kind: str
    message: str
    traceback: str
    raised_at: float
    """CLOCK_MONOTONIC seconds of the rank's host; where its site has read the report, the controller's."""
    torch_errors: list[str] = []
    """``kind: message`` of each exception that torch raised, among this one, its causes and contexts."""
    began_in_torch: bool = False
    """Whether the first of them all was torch's: then nothing of the rank's own came before it."""


class RankReport(Record, frozen=True, kw_only=True):
    """The file a rank leaves behind."""

    rank: int
    outcome: Outcome
    phase: Phase
    phases: dict[str, float]
    """Seconds spent in each phase; those of :data:`MOMENTS` are CLOCK_MONOTONIC stamps."""
    reason: str = ""
    error: ErrorReport | None = None
    observations: list[Observation] = []
    fingerprints: dict[str, RankFingerprint] = {}
    unseen_collectives: int = 0
    """That a body entered which has no fingerprint: it has no loop of ``rank.timed`` or ``rank.goal``."""
    peak_memory_bytes: int | None = None
    """Of the device's allocator on CUDA, else what the body needed beyond the process it began in; None: not known."""
    load: Load | None = None
    """Of rank 0: who computed from when all ranks were there to the end of its body."""
    software: dict[str, str] = {}
    gpu: str = ""
    """UUID of the CUDA device it computed on, as torch spells it; empty: on none, or torch does not tell."""
    group_size: int = 0
    """Ranks of the largest process group it was in; 0: in none."""
    delayed_s: float = 0.0
    """By which a slowdown that was planted made it longer."""


class RankFate(Record, frozen=True, kw_only=True):
    """How one rank ended, told with or without its own report."""

    rank: int
    outcome: Outcome
    phase: Phase
    how: str
    """In words: ``passed``, ``raised ValueError``, ``exit code 3``, ``killed by SIGKILL``."""
    is_victim: bool = False
    """True where the failure followed from another rank's."""
    error: ErrorReport | None = None
    log_tail: str = ""
    stacks: str = ""
    """Python stacks of a rank that hung, was waiting when another failed, or died of a signal."""
    waits_at: str = ""
    """The user's line it hung, waited or died at: ``file.py:7 in function``."""
    collective: str = ""
    """The last collective it entered, from torch's flight recorder: ``all_reduce of float32[1000]``."""
    collective_number: int | None = None
    """Number of that collective in its group, from 1; 0: it entered none."""
    collective_is_over: bool = False
    """It has ended, or was given up: the rank waits elsewhere, if it waits."""
    is_elsewhere: bool = False
    """It hung in code of its own, where others may wait for it.

    On a GPU ``loss.item()`` waits for other ranks and is a line like any other: there it has to be known besides that
    nothing the rank has entered is unfinished.
    """
    entered: dict[str, int] = {}
    """Group's name -> number of the last collective it entered there."""
    unfinished: dict[str, int] = {}
    """Group's name -> number of the first collective there that it entered and that is not over."""
    groups: dict[str, list[int]] = {}
    """Ranks of the groups it belongs to, by name."""
    doubt_s: float = 0.0
    """It failed no longer than so many seconds before or after the rank that is told first, on another host: the clocks
    of the two do not tell which was the first. 0: that is known."""

    @property
    def is_hung(self) -> bool:
        """Whether it did not go on, and was ended."""
        return self.how == HUNG
