"""One process group from start to exit."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_distbench.records.breakdown import Breakdown
from pytest_distbench.records.elastic import ElasticResult
from pytest_distbench.records.fingerprint import Fingerprint
from pytest_distbench.records.gpu import GpuWitness
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.pool import PoolResult
from pytest_distbench.records.rank import Outcome, RankFate
from pytest_distbench.records.record import Record


class LaunchRecord(Record, frozen=True, kw_only=True):
    """One process group from start to exit."""

    index: int
    command: str = ""
    """That was run, secrets masked; empty: ranks were."""
    outcome: Outcome
    wall_s: float
    only: list[str] = []
    """The metrics a further launch was started for; empty: all."""
    phases: dict[str, float] = {}
    """Seconds of the slowest rank in each phase."""
    reason: str = ""
    timed_out: bool = False
    fates: list[RankFate] = []
    """Of a launch that passed there are none."""
    measurements: list[Measurement] = []
    fingerprints: dict[str, Fingerprint] = {}
    """By the metric whose iteration it describes; ``training_start`` is what came before a training's first step."""
    unseen_collectives: int = 0
    """That a rank of a body without fingerprints entered, the most of any; see :class:`RankReport`."""
    late_s: dict[str, list[float]] = {}
    """By the same keys and rank: seconds after the first rank at which each entered the collective that it came latest
    to."""
    breakdowns: dict[str, Breakdown] = {}
    """By the key of a loop's metric: where its iterations go, if a body names their parts (``rank.phase``)."""
    peak_memory_bytes: int = 0
    """Of the rank that needed most, as the metric; 0: not known."""
    foreign_cores: float | None = None
    """Cores kept busy by other processes during the body; None where it was too short to tell."""
    foreign_wanted: float | None = None
    """Cores that they would have kept busy, had there been enough; None where that is not known."""
    crowding: float | None = None
    """How many times as long the work took because they wanted the same cores; None where that is not known."""
    cpu_course: list[tuple[float, float]] = []
    """Seconds since it began -> share of this host's usable CPUs that was busy since the moment before."""
    hosts: list[str] = []
    """Where each rank lived, by rank; empty: all on one host."""
    gpus: list[str] = []
    """UUIDs of the CUDA devices the ranks say they computed on, by rank; empty for those that do not say."""
    gpu_witnesses: list[GpuWitness] = msgspec.field(default_factory=list, name="cards")
    """The GPUs it ran on, in the order of the ranks; empty on the CPU, and where the driver is silent."""
    software: dict[str, str] = {}
    delayed_s: float = 0.0
    """By which a slowdown that was planted made it longer: its clocks are no measurements."""
    elastic: ElasticResult | None = None
    """Of an elastic job: its changes and epochs."""
    pool: PoolResult | None = None
    """Of jobs that share slots: who had which, and what became of each."""
    remarks: list[str] = []
    """What the user should know of it besides: that a thread of his kept a rank from ending, for example."""
    logs: str = ""
    """Folder of what the ranks printed."""

    @property
    def has_jobs(self) -> bool:
        """Whether it ran elastic jobs: what it measured is computed of their timelines."""
        return self.elastic is not None or self.pool is not None

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
                "test is over. Read it in the test, or keep it with --distbench-logs DIR"
            ) from None
