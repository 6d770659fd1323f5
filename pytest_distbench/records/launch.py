"""One process group from start to exit: how each rank fared, what those of one host recorded together, and the record.

Ranks are reduced on their host: a launch gets as much from each host as from a rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from pytest_distbench.records.environment import GpuWitness, Load
from pytest_distbench.records.iteration import Breakdown, Fingerprint
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Observation, Sample
from pytest_distbench.records.record import Record
from pytest_distbench.records.trained import Trained
from pytest_distbench.records.wire import Event

Outcome = Literal["passed", "failed", "skipped"]

HUNG = "hung"  # how a rank ended that did not go on

MOMENTS = ("begin", "end")  # among the phases of a report: stamps, where the others are durations

Phase = Literal["start", "import", "rendezvous", "body", "teardown", "exit"]


class ErrorReport(Record, frozen=True, kw_only=True):
    """An exception as one rank saw it."""

    kind: str
    message: str
    traceback: str
    raised_at: float  # CLOCK_MONOTONIC seconds of the rank's host; where its site has read the report, the controller's
    torch_errors: list[str] = []
    """``kind: message`` of each exception that torch raised, among this one, its causes and contexts."""
    began_in_torch: bool = False
    """Whether the first of them all was torch's: then nothing of the rank's own came before it."""


class RankReport(Record, frozen=True, kw_only=True):
    """The file a rank leaves behind."""

    rank: int
    outcome: Outcome
    phase: Phase
    phases: dict[str, float]  # seconds spent in each phase; those of :data:`MOMENTS` are CLOCK_MONOTONIC stamps
    reason: str = ""
    error: ErrorReport | None = None
    observations: list[Observation] = []
    fingerprints: dict[str, Fingerprint] = {}
    entered: dict[str, list[float]] = {}
    """By the same keys, when it entered each collective, the first few hundred; CLOCK_MONOTONIC of its host."""
    lines: dict[str, list[str]] = {}
    """Of rank 0, by the same keys, the line that called each of these collectives: ``train.py:41 in step``."""
    unseen_collectives: int = 0
    """That a body entered which has no fingerprint: it has no loop of ``rank.timed`` or ``rank.goal``."""
    peak_memory_bytes: int | None = None
    """Of the device's allocator on CUDA, else what the body needed beyond the process it began in; None: not known."""
    second_peak_bytes: int | None = None  # the same from update UNDER_WAY on; None: there were not so many
    load: Load | None = None  # of rank 0: who computed from when all ranks were there to the end of its body
    software: dict[str, str] = {}
    gpu: str = ""  # UUID of the CUDA device it computed on, as torch spells it; empty: on none, or torch does not tell
    group_size: int = 0  # ranks of the largest process group it was in; 0: in none
    delayed_s: float = 0.0  # by which a slowdown that was planted made it longer
    trained: Trained = Trained()

    def write(self, files: LaunchFiles) -> None:
        """Leave the file, whole or not at all."""
        draft = files.report(self.rank).with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(self))
        draft.rename(files.report(self.rank))


class RankFate(Record, frozen=True, kw_only=True):
    """How one rank ended, told with or without its own report."""

    rank: int
    outcome: Outcome
    phase: Phase
    how: str  # in words: ``passed``, ``raised ValueError``, ``exit code 3``, ``killed by SIGKILL``
    is_victim: bool = False  # true where the failure followed from another rank's
    error: ErrorReport | None = None
    log_tail: str = ""
    stacks: str = ""  # Python stacks of a rank that hung, was waiting when another failed, or died of a signal
    waits_at: str = ""  # the user's line it hung, waited or died at: ``file.py:7 in function``
    collective: str = ""
    """The last collective it entered, from torch's flight recorder: ``all_reduce of float32[1000]``."""
    collective_number: int | None = None  # number of that collective in its group, from 1; 0: it entered none
    collective_is_over: bool = False  # it has ended, or was given up: the rank waits elsewhere, if it waits
    is_elsewhere: bool = False
    """It hung in code of its own, where others may wait for it.

    On a GPU ``loss.item()`` waits for other ranks and is a line like any other: there it has to be known besides that
    nothing the rank has entered is unfinished.
    """
    awaits_file: str = ""  # it hung waiting for the end of this file, the lock of a build
    went_on: int = 0  # collectives that it had entered, where it still entered more when its time was up; 0: it hung
    entered: dict[str, int] = {}  # group's name -> number of the last collective it entered there
    unfinished: dict[str, int] = {}
    """Group's name -> number of the first collective there that it entered and that is not over."""
    groups: dict[str, list[int]] = {}  # ranks of the groups it belongs to, by name
    doubt_s: float = 0.0
    """It failed no longer than so many seconds before or after the rank that is told first, on another host: the clocks
    of the two do not tell which was the first. 0: that is known."""

    @property
    def is_hung(self) -> bool:
        return self.how == HUNG


Entered = tuple[list[float], dict[int, tuple[int, float]]]
"""When some ranks entered the collectives of an iteration: the first of them each, CLOCK_MONOTONIC seconds of the host,
or the controller's where its site has read the report; and by rank the collective that it came latest to, from 0, and
how long after that first."""


class HostReport(Record, frozen=True, kw_only=True):
    """What the ranks of one host have left behind; of ranks that did not all pass, how each ended, and no more."""

    ranks: list[RankReport] = []  # of those that left a report, ascending, without what the other fields tell
    observations: list[Observation] = []
    """In the order they were first recorded; of one key there are several where ranks do not agree what it is."""
    fingerprints: dict[str, Fingerprint] = {}
    entered: dict[str, Entered] = {}
    """By the same key as fingerprints, where all ranks of the host entered equally many collectives."""


class LaunchRecord(Record, frozen=True, kw_only=True):
    """One process group from start to exit."""

    index: int
    command: str = ""  # that was run, secrets masked; empty: ranks were
    outcome: Outcome
    wall_s: float
    only: list[str] = []  # the metrics a further launch was started for; empty: all
    phases: dict[str, float] = {}  # seconds of the slowest rank in each phase
    reason: str = ""
    timed_out: bool = False
    fates: list[RankFate] = []  # of a launch that passed there are none
    measurements: list[Sample] = []
    fingerprints: dict[str, Fingerprint] = {}
    """By the metric whose iteration it describes; ``training_start`` is what came before a training's first step."""
    lines: dict[str, list[str]] = {}  # by the same keys, where rank 0 called each collective of them
    unseen_collectives: int = 0
    """That a rank of a body without fingerprints entered, the most of any; see :class:`RankReport`."""
    late_s: dict[str, list[float]] = {}
    """By the same keys and rank: seconds after the first rank at which each entered the collective that it came latest
    to."""
    breakdowns: dict[str, Breakdown] = {}
    """By the key of a loop's metric: where its iterations go, if a body names their parts (``rank.phase``)."""
    peak_memory_bytes: int = 0  # of the rank that needed most, as the metric; 0: not known
    foreign_cores: float | None = None
    """Cores kept busy by other processes during the body; None where it was too short to tell."""
    foreign_wanted: float | None = None
    """Cores that they would have kept busy, had there been enough; None where that is not known."""
    crowding: float | None = None
    """How many times as long the work took because they wanted the same cores; None where that is not known."""
    cpu_course: list[tuple[float, float]] = []
    """Seconds since it began -> share of this host's usable CPUs that was busy since the moment before."""
    hosts: list[str] = []  # where each rank lived, by rank; empty: all on one host
    gpus: list[str] = []
    """UUIDs of the CUDA devices the ranks say they computed on, by rank; empty for those that do not say."""
    gpu_witnesses: list[GpuWitness] = msgspec.field(default_factory=list, name="cards")
    """The GPUs it ran on, in the order of the ranks; empty on the CPU, and where the driver is silent."""
    software: dict[str, str] = {}
    delayed_s: float = 0.0  # by which a slowdown that was planted made it longer: its clocks are no measurements
    events: list[Event] = []
    """What happened in it, of a kind that keeps that: then what it measured is computed of a timeline."""
    remarks: list[str] = []
    """What the user should know of it besides: that a thread of his kept a rank from ending, for example."""
    host_was_busy: bool = False  # another run measured on this host, and this one did not wait for its end
    unlinked: list[str] = []
    """Of a recording: names, from the root of the tests, of what ranks read, git ignores, and nothing links."""
    logs: str = ""  # folder of what the ranks printed

    def output(self, rank: int = 0) -> str:
        """What a rank printed, on stdout and stderr. Of a launch that passed it is there until its test is over.

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
