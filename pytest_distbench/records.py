"""The nouns: frozen records that travel between ranks, session, files and reports.

All are msgspec structs: reading one from a file checks every field and names the path of the first wrong one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, TypeVar

import msgspec

Scalar = bool | int | float | str
Better = Literal["higher", "lower", "exact", "info"]
Reduce = Literal["max", "min", "mean", "sum", "rank0", "all"]
Outcome = Literal["passed", "failed", "skipped"]
Phase = Literal["start", "import", "rendezvous", "body", "teardown", "exit"]
VerdictKind = Literal["regressed", "improved", "unchanged", "inconclusive", "incomparable", "missing"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: immutable, built whole, strict about unknown fields."""


class Environment(Record, frozen=True, kw_only=True):
    """What hardware and software a launch ran on. Holds no host name and no secret."""

    platform: str
    """Hardware class, the key of baselines."""
    device: str
    """Product name of the GPU, or of the CPU."""
    cores: int
    """CPU cores this process may use."""
    software: dict[str, str]
    """Versions that can change a result: python, torch, numpy, and for GPUs cuda and nccl."""
    variables: dict[str, str] = {}
    """Environment variables on the allow-list."""
    shares_gpu: bool = False
    """Several ranks ran on one GPU: the numbers say nothing about the hardware, and are compared with none."""


class ErrorReport(Record, frozen=True, kw_only=True):
    """An exception as one rank saw it."""

    kind: str
    message: str
    traceback: str
    raised_at: float
    """CLOCK_MONOTONIC seconds: comparable between the ranks of one host."""


class Observation(Record, frozen=True, kw_only=True):
    """What one rank recorded under one name: a value or a series, before reduction over ranks."""

    name: str
    unit: str
    better: Better
    reduce: Reduce
    values: list[float]
    is_series: bool
    at: dict[str, Scalar] = {}
    facts: dict[str, Scalar] = {}


class RankReport(Record, frozen=True, kw_only=True):
    """The file a rank leaves behind."""

    rank: int
    pid: int
    outcome: Outcome
    phase: Phase
    phases: dict[str, float]
    """Seconds spent in each phase; ``begin`` and ``end`` are CLOCK_MONOTONIC stamps."""
    reason: str = ""
    error: ErrorReport | None = None
    observations: list[Observation] = []
    body_s: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of this rank and its children during the body."""
    busy_s: float = 0.0
    """CPU seconds of the whole machine during the body of this rank."""
    software: dict[str, str] = {}


class BodyReference(Record, frozen=True, kw_only=True):
    """Where a rank finds what it runs: a function in a file, or a whole script (no ``function``)."""

    file: str
    function: str = ""
    module: str = ""
    """The module name pytest knows the file by; used where it leads to the same file."""
    is_rewritten: bool = False
    """Whether pytest rewrote the assertions of that module."""
    arguments: list[str] = []
    """Command line of a script."""


class LaunchPlan(Record, frozen=True, kw_only=True):
    """Everything a rank needs to know, read from ``plan.json`` in the launch's directory."""

    index: int
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    body: BodyReference
    params: dict[str, Any]
    seeds: list[int]
    """The body runs once for each."""
    timeout_s: float
    directory: str
    """Private directory of this launch: plan, control socket, logs, rank reports."""
    data_dir: str
    """Shared by all launches of a run: a place for data made once."""
    working_dir: str
    python_path: list[str]
    variables: dict[str, str]
    devices: list[int] = []
    """Index of the CUDA device of each local rank; empty on the CPU."""
    shares_gpu: bool = False
    """Several ranks run on one GPU, which NCCL refuses unless each poses as a host of its own."""
    attached: int | None = None
    """The rank that owns the terminal; None: every rank writes to its log."""
    post_mortem: bool = False
    """The attached rank starts pdb where its body raised."""
    only: list[str] = []
    """Metrics whose answer is still open; a body may leave out the others. Empty: measure everything."""
    reports_progress: bool = False
    set_threads: int | None = None
    """Intra-op threads to set in a rank that did not import torch itself; None leaves them alone."""


class Summary(Record, frozen=True, kw_only=True):
    """Spread of a series inside one launch, after reduction over ranks."""

    n: int
    minimum: float
    p25: float
    median: float
    p95: float
    p99: float
    mean: float
    stdev: float
    slowest_rank: int | None = None
    """The rank that was slowest most often; None where ranks were not compared."""
    slowest_share: float = 0.0
    """Share of the iterations in which that rank was the slowest, 0 to 1."""


class Measurement(Record, frozen=True, kw_only=True):
    """One metric of one launch, reduced over ranks: the sample a verdict is made of."""

    name: str
    unit: str
    better: Better
    value: float | None
    """The launch's value; None says it has none (a goal never reached)."""
    at: dict[str, Scalar] = {}
    facts: dict[str, Scalar] = {}
    series: list[float] = []
    """Kept for exact and info series only."""
    summary: Summary | None = None

    @property
    def key(self) -> str:
        """Name and point: ``latency[message_bytes=4096]``."""
        return metric_key(self.name, self.at)


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
    """Python stacks of a rank that hung, or was waiting when another failed."""
    waits_at: str = ""
    """The user's line it hung or waited at: ``file.py:7 in function``."""
    collective: str = ""
    """The last collective it entered, from torch's flight recorder: ``all_reduce of float[1000]``."""
    collective_number: int | None = None
    """Number of that collective in the default group, from 1; 0: it entered none."""


class LaunchRecord(Record, frozen=True, kw_only=True):
    """One process group from start to exit."""

    index: int
    outcome: Outcome
    wall_s: float
    only: list[str] = []
    """The metrics a further launch was started for; empty: all."""
    phases: dict[str, float] = {}
    """Seconds of the slowest rank in each phase."""
    reason: str = ""
    timed_out: bool = False
    fates: list[RankFate] = []
    measurements: list[Measurement] = []
    foreign_cores: float | None = None
    """Cores kept busy by other processes during the body; None where it was too short to tell."""
    software: dict[str, str] = {}
    logs: str = ""


class Case(Record, frozen=True, kw_only=True):
    """One measured point: a test with its parameters, on one kind of process group."""

    test: str
    """Path and function, without parameters: ``suites/collectives/test_all_reduce.py::test_all_reduce``."""
    case_id: str
    """The bracketed part of the node id, for example ``float32-ws2``."""
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    launcher: str
    params: dict[str, Any] = {}

    @property
    def entry_key(self) -> str:
        """Key of this case inside its baseline file."""
        return f"{self.case_id}.{self.backend}.{self.launcher}"

    @property
    def workload(self) -> str:
        """Short hash of the parameters: a baseline with another hash measured something else."""
        text = json.dumps([self.world_size, self.device, self.params], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class BaselineMetric(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Stored values of one metric, one per launch."""

    better: Better
    unit: str
    launches: Annotated[list[float | None], msgspec.Meta(min_length=1)]
    tolerance: float | None = None
    """Set by hand in the file, as a fraction; an update keeps it."""


class BaselineEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Stored values of one case."""

    workload: str
    world_size: int
    backend: str
    launcher: str
    software: dict[str, str]
    metrics: dict[str, BaselineMetric]
    params: dict[str, Any] = {}
    foreign_cores: float | None = None
    """Cores that other processes used in the median launch; None where the body was too short to tell."""


class Verdict(Record, frozen=True, kw_only=True):
    """The answer for one metric of one case."""

    metric: str
    kind: VerdictKind
    unit: str
    better: Better
    current: float | None = None
    """Median over launches."""
    baseline: float | None = None
    ratio: float | None = None
    """current / baseline; None where one of them is missing."""
    limit: float | None = None
    """The largest change towards worse that is not called a regression, as a fraction."""
    launches: int = 0
    baseline_launches: int = 0
    reason: str = ""
    at: dict[str, Scalar] = {}
    facts: dict[str, Scalar] = {}

    @property
    def is_failure(self) -> bool:
        """Whether this verdict alone fails a test under the default policy."""
        return self.kind == "regressed"


class CaseResult(Record, frozen=True, kw_only=True):
    """Everything measured and said about one case in this run."""

    nodeid: str
    case: Case
    environment: Environment
    launches: list[LaunchRecord]
    verdicts: list[Verdict]
    baseline_path: str = ""
    baseline_software: dict[str, str] = {}
    update: Literal["", "new", "changed", "kept"] = ""
    previous: dict[str, float | None] = {}
    """Old baseline values of the metrics an update rewrote; None where there was none."""


class RunRecord(Record, frozen=True, kw_only=True):
    """The file ``--distbench-json`` writes."""

    schema: int
    distbench: str
    """Version of this package."""
    started: str
    """UTC, ISO 8601."""
    duration_s: float
    world_sizes: list[int]
    gpu: bool
    results: list[CaseResult]


AnyRecord = TypeVar("AnyRecord", bound=Record)


def replaced(record: AnyRecord, **changes: Any) -> AnyRecord:
    """A copy of a record with some fields changed."""
    return msgspec.structs.replace(record, **changes)


def metric_key(name: str, at: dict[str, Scalar]) -> str:
    """Join a metric's name and its point into the key used in files and tables."""
    if not at:
        return name
    return f"{name}[{','.join(f'{k}={v}' for k, v in sorted(at.items()))}]"
