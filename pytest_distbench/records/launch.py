"""One process group from start to exit: how each rank ended, what one host's ranks recorded together, and the record.

Ranks are reduced on their host: a launch gets as much from each host as from a rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from pytest_distbench.records.environment import GpuReport, Load
from pytest_distbench.records.iteration import Breakdown, Fingerprint
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Observation, Sample
from pytest_distbench.records.record import Record
from pytest_distbench.records.trained import Trained
from pytest_distbench.records.wire import Event

Outcome = Literal["passed", "failed", "skipped"]

HUNG = "hung"  # end of a rank that made no progress

MOMENTS = ("begin", "end")  # phases of a report that are stamps; all others are durations

Phase = Literal["start", "import", "rendezvous", "body", "teardown", "exit"]


class ErrorReport(Record, frozen=True, kw_only=True):
    """An exception as one rank raised it."""

    kind: str
    message: str
    traceback: str
    raised_at: float  # CLOCK_MONOTONIC seconds of the rank's host; once its site has read the report, the controller's
    torch_errors: list[str] = []
    """``kind: message`` of each exception that torch raised, among this one, its causes and contexts."""
    began_in_torch: bool = False
    """Whether torch raised the first of them: then nothing of the rank's own code came before it."""


class RankReport(Record, frozen=True, kw_only=True):
    """What one rank recorded in a launch and how it ended; the content of a file that it writes."""

    rank: int
    outcome: Outcome
    phase: Phase
    phases: dict[str, float]  # seconds spent in each phase; those of :data:`MOMENTS` are CLOCK_MONOTONIC stamps
    reason: str = ""
    error: ErrorReport | None = None
    observations: list[Observation] = []
    fingerprints: dict[str, Fingerprint] = {}
    entered: dict[str, list[float]] = {}
    """Key of a fingerprint -> when the rank entered each of its collectives; CLOCK_MONOTONIC seconds of its host."""
    lines: dict[str, list[str]] = {}
    """Key of a fingerprint -> line that called each of its collectives: ``train.py:41 in step``; rank 0 alone."""
    undescribed_collectives: int = msgspec.field(default=0, name="unseen_collectives")
    """Collectives that a body without a fingerprint entered: it has no loop of ``rank.timed`` or ``rank.goal``."""
    peak_memory_bytes: int | None = None
    """Peak bytes of the device's allocator on CUDA, else what the body added to the process; or None if unknown."""
    second_peak_bytes: int | None = None  # the same from update UNDER_WAY on; None: there were not so many
    load: Load | None = None  # of rank 0: from when all ranks were there to the end of its body
    software: dict[str, str] = {}
    gpu: str = ""  # UUID of the CUDA device it computed on, as torch spells it; empty if none, or unknown
    group_size: int = 0  # ranks of the largest process group it was in, or 0
    delayed_s: float = 0.0  # seconds that an injected slowdown added
    trained: Trained = Trained()

    def write(self, files: LaunchFiles) -> None:
        """Write the file, whole or not at all."""
        draft = files.report(self.rank).with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(self))
        draft.rename(files.report(self.rank))


class RankFate(Record, frozen=True, kw_only=True):
    """How one rank ended, with or without a report of its own."""

    rank: int
    outcome: Outcome
    phase: Phase
    how: str  # in words: ``passed``, ``raised ValueError``, ``exit code 3``, ``killed by SIGKILL``
    is_victim: bool = False  # its failure followed from another rank's
    error: ErrorReport | None = None
    log_tail: str = ""
    stacks: str = ""  # Python stacks of a rank that hung, was waiting when another failed, or died of a signal
    waits_at: str = ""  # the user's line it hung, waited or died at: ``file.py:7 in function``
    collective: str = ""
    """Last collective it entered, from torch's flight recorder: ``all_reduce of float32[1000]``."""
    collective_number: int | None = None  # number of that collective in its group, from 1; 0: it entered none
    collective_is_over: bool = False  # it has ended, or was given up: a waiting rank waits elsewhere
    is_elsewhere: bool = False
    """Whether the rank hung in its user's code, neither in torch nor in this package: others may wait for it.

    On a GPU ``loss.item()`` waits for other ranks and is a line like any other: there nothing that the rank has entered
    may be unfinished either.
    """
    awaits_file: str = ""  # file whose end it waited for, such as the lock of a build
    went_on: int = 0  # collectives it had entered if it still entered more when its time was up; 0: it hung
    entered: dict[str, int] = {}  # group's name -> number of the last collective it entered there
    unfinished: dict[str, int] = {}
    """Group's name -> number of the first unfinished collective that it entered there."""
    groups: dict[str, list[int]] = {}  # ranks of its groups, by name
    error_s: float = msgspec.field(default=0.0, name="doubt_s")
    """Seconds within which its failure and that of the rank listed first, on another host, cannot be ordered by the
    hosts' clocks; 0 if the order is known."""

    @property
    def is_hung(self) -> bool:
        return self.how == HUNG


Entered = tuple[list[float], dict[int, tuple[int, float]]]
"""When some ranks entered the collectives of an iteration: CLOCK_MONOTONIC seconds of the host at which the first rank
entered each (the controller's once its site has read the report); and by rank the collective that it came latest to,
from 0, and the seconds after that first rank."""


class HostReport(Record, frozen=True, kw_only=True):
    """What the ranks of one host left behind; if not all passed, only how each ended."""

    ranks: list[RankReport] = []  # of those that left a report, ascending, without what the other fields hold
    observations: list[Observation] = []
    """Observations in the order they were first recorded; a key has several if ranks disagree about its definition."""
    fingerprints: dict[str, Fingerprint] = {}
    entered: dict[str, Entered] = {}
    """Times by the keys of ``fingerprints``, if all ranks of the host entered equally many collectives."""


class LaunchRecord(Record, frozen=True, kw_only=True):
    """One process group from start to exit."""

    index: int
    command: str = ""  # secrets masked; empty for ranks
    outcome: Outcome
    wall_s: float
    only: list[str] = []  # metrics that a further launch was started for; empty: all
    phases: dict[str, float] = {}  # seconds of the slowest rank in each phase
    reason: str = ""
    timed_out: bool = False
    fates: list[RankFate] = []  # empty if the launch passed
    measurements: list[Sample] = []
    fingerprints: dict[str, Fingerprint] = {}
    """Fingerprints by the metric whose iteration they describe; ``training_start`` precedes a training's first step."""
    lines: dict[str, list[str]] = {}  # where rank 0 called each of their collectives, by the same keys
    undescribed_collectives: int = msgspec.field(default=0, name="unseen_collectives")
    """Most collectives that a rank of a body without fingerprints entered, see :class:`RankReport`."""
    late_s: dict[str, list[float]] = {}
    """Key of a fingerprint -> by rank, seconds after the first rank at the collective that the rank was latest at."""
    breakdowns: dict[str, Breakdown] = {}
    """Time of a loop's iterations by the key of its metric, if the body names phases (``rank.phase``)."""
    peak_memory_bytes: int = 0  # of the rank that needed most, as the metric; 0 if unknown
    foreign_cores: float | None = None
    """Cores kept busy by other processes during the body, or None if it was too short."""
    foreign_wanted: float | None = None
    """Cores that other processes would have kept busy, had there been enough; or None if unknown."""
    crowding: float | None = None
    """Factor by which competition for the cores prolonged the work, or None if unknown."""
    cpu_course: list[tuple[float, float]] = []
    """Seconds since it began -> share of this host's usable CPUs that was busy since the previous moment."""
    hosts: list[str] = []  # by rank; empty: all on one host
    gpus: list[str] = []
    """UUIDs of the CUDA devices that the ranks computed on, by rank; empty for ranks that do not report it."""
    gpu_reports: list[GpuReport] = msgspec.field(default_factory=list, name="cards")
    """The GPUs it ran on, in the order of the ranks; empty on the CPU, and if the driver is silent."""
    software: dict[str, str] = {}
    delayed_s: float = 0.0  # seconds that an injected slowdown added: its timings are no measurements
    events: list[Event] = []
    """Events of a launch kind that records a timeline: its metrics are computed from them."""
    remarks: list[str] = []
    """Notes for the user, such as a thread of theirs that kept a rank from ending."""
    host_was_busy: bool = False  # another run measured on this host, and this one did not wait for its end
    unlinked: list[str] = []
    """Files that ranks read while a baseline was recorded, and git ignores; paths from the root of the tests."""
    logs: str = ""  # folder of the ranks' output

    def output(self, rank: int = 0) -> str:
        """Return what a rank printed, stdout and stderr. For a launch that passed it exists until its test is over.

        Raises:
            FileNotFoundError: it is gone, or there is no such rank; the message says what to do.
        """
        path = LaunchFiles(Path(self.logs)).log(rank)
        try:
            return path.read_text(errors="replace")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"no output of rank {rank} of launch {self.index + 1} in {self.logs}: there is no such rank, or the "
                "test is over. Read it in the test, or keep it with --distbench-out DIR"
            ) from None
