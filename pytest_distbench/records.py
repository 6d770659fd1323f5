"""The nouns: frozen records that travel between ranks, session, files and reports.

All are msgspec structs: reading one from a file checks every field and names the path of the first wrong one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, TypeVar

import msgspec

Scalar = bool | int | float | str
Better = Literal["higher", "lower", "exact", "info", "curve", "same", "steps", "floor"]
Reduce = Literal["max", "min", "mean", "sum", "rank0", "all"]
Outcome = Literal["passed", "failed", "skipped"]
Phase = Literal["start", "import", "rendezvous", "body", "teardown", "exit"]
Tolerance = Annotated[float, msgspec.Meta(ge=0)]
VerdictKind = Literal[
    "regressed", "changed", "improved", "unchanged", "drifted", "inconclusive", "incomparable", "missing"
]
_RANKS = r"^(all|\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*)$"

PHASE = "phase/"
"""What the names of phases begin with among the metrics."""

CONVERGENCE: tuple[Better, ...] = ("curve", "same", "steps", "floor")
"""Numbers of a seeded training: repeated exactly while software and arithmetic are the baseline's, else judged over
seeds (see ``convergence``)."""


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
    torch_errors: list[str] = []
    """``kind: message`` of each exception that torch raised, among this one, its causes and contexts."""
    began_in_torch: bool = False
    """Whether the first of them all was torch's: then nothing of the rank's own came before it."""


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
    companions: dict[str, list[float]] = {}
    """Quieter witnesses of a clock, one value per iteration: ``cpu_s``, ``waits``."""


class Collective(Record, frozen=True, array_like=True):
    """Equal collectives in a row; in files a list: ``["all_reduce", "float32", 4096, "default", 2]``."""

    op: str
    dtype: str
    """Empty where nothing is sent, as in a barrier."""
    message_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Bytes one rank puts in."""
    group: str
    """``default``, or the description or name of another process group."""
    count: Annotated[int, msgspec.Meta(ge=1)]


class RankFingerprint(Record, frozen=True, kw_only=True):
    """What one rank did in one untimed iteration or training step."""

    collectives: list[Collective] = []
    parameters: int = 0
    """Elements the optimizers that stepped in it hold."""
    optimizer_steps: int = 0
    entered: list[float] = []
    """When it entered each collective, seconds since its first; of the first few hundred."""
    began: float = 0.0
    """When it entered the first, CLOCK_REALTIME seconds."""
    missing: str = ""
    """Why nothing is known; empty where it is."""


class Fingerprint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one iteration or training step does, in whole numbers that no noise can move."""

    collectives: dict[Annotated[str, msgspec.Meta(pattern=_RANKS)], list[Collective]] = {}
    """In the order they were entered, by ranks: ``all``, or ``0`` and ``1-3`` where ranks differ."""
    parameters: int = 0
    """Elements that the optimizers of all ranks hold together."""
    optimizer_steps: int = 0
    """Of all ranks together: one that skips its step is seen."""
    missing: str = ""
    """Why there is none: it cannot be read here, or differs between launches."""


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
    fingerprints: dict[str, RankFingerprint] = {}
    peak_memory_bytes: int = 0
    """Of the device's allocator on CUDA, else the largest resident size of the process."""
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
    takes_turns: bool = False
    """Another group runs beside this one: every rank waits for its group's turn before each block of iterations."""
    tree: str = ""
    """Where the revision is checked out that this group measures; empty: it measures the working tree."""
    foreign_tree: str = ""
    """The working tree, from which a group with a ``tree`` of its own may import no module."""


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
    """Kept for exact, info and curve series only."""
    summary: Summary | None = None
    companions: dict[str, float] = {}
    """Of one iteration, summed over ranks: ``cpu_s`` (25th percentile), ``waits`` (mean)."""

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
    """Number of that collective in its group, from 1; 0: it entered none."""
    collective_is_over: bool = False
    """It has ended, or was given up: the rank waits elsewhere, if it waits."""
    is_elsewhere: bool = False
    """It hung in code of its own, where others may wait for it. Unknown with a GPU: to wait for that looks the same."""
    entered: dict[str, int] = {}
    """Group's name -> number of the last collective it entered there."""
    groups: dict[str, list[int]] = {}
    """Ranks of the groups it belongs to, by name."""


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
    fingerprints: dict[str, Fingerprint] = {}
    """By the metric whose iteration it describes; ``training_start`` is what came before a training's first step."""
    late_s: dict[str, list[float]] = {}
    """By the same keys: how long after the first rank each rank entered the collectives, mean seconds, by rank."""
    peak_memory_bytes: int = 0
    """Of the rank that used most."""
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
    tolerance: Tolerance | None = None
    """Set by hand in the file, as a fraction; goes before the entry's. An update keeps it."""
    minimum: list[Annotated[float, msgspec.Meta(gt=0)]] = []
    """Fastest iteration of each launch; empty where launches have no iterations."""
    p95: list[Annotated[float, msgspec.Meta(gt=0)]] = []
    """95th percentile of each launch; empty where launches have no iterations."""
    curve: list[float] = []
    """A golden curve, nine significant digits: that of the first launch."""
    spread: float = 0.0
    """Largest relative deviation of the other launches from that curve; 0: they repeat it bit for bit."""
    facts: dict[str, Scalar] = {}
    """Of a convergence metric: what defines the number, such as the target and the evaluation interval."""
    companions: dict[str, float] = {}
    """Medians over launches; they explain a regression and are not judged."""

    def __post_init__(self) -> None:
        if self.better == "exact" and self.tolerance is not None:
            raise ValueError("an exact metric has no tolerance: take it out, or record the number as lower or higher")
        if self.minimum or self.p95:
            lengths = (len(self.launches), len(self.minimum), len(self.p95))
            if len(set(lengths)) > 1 or None in self.launches:
                raise ValueError(f"launches, minimum and p95 must have one number per launch, found {lengths}")
            for low, value, high in zip(self.minimum, self.launches, self.p95, strict=True):
                if not low <= value <= high:  # type: ignore[operator] # none is None
                    raise ValueError(f"a launch of {value} cannot have minimum {low} and p95 {high}")


class BaselineEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Stored values of one case."""

    workload: str
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    backend: str
    launcher: str
    software: dict[str, str]
    metrics: dict[str, BaselineMetric]
    params: dict[str, Any] = {}
    foreign_cores: float | None = None
    """Cores that other processes used in the median launch; None where the body was too short to tell."""
    tolerance: Tolerance | None = None
    """Set by hand in the file, for all metrics of this case; goes before markers and options. An update keeps it."""
    xfail_perf: str = ""
    """Set by hand in the file: why a regression of this case is expected. An update keeps it."""
    fingerprints: dict[str, Fingerprint] = {}
    phases: dict[str, float] = {}
    """Seconds in each phase the body named, of the median launch; they explain, and are not judged."""
    peak_memory_bytes: int | None = None
    """Of the median launch, four digits; explains, is not judged."""


class EntryName(Record, frozen=True, kw_only=True, order=True):
    """What a stored entry is known by."""

    platform: str
    test: str
    key: str

    def __str__(self) -> str:
        return f"{self.test}[{self.key}]"


class Verdict(Record, frozen=True, kw_only=True):
    """The answer for one metric of one case."""

    metric: str
    kind: VerdictKind
    unit: str
    better: Better
    current: float | None = None
    """Median over launches; of a convergence metric the mean over seeds."""
    baseline: float | None = None
    ratio: float | None = None
    """current / baseline, of a clock that of the fast sides, which are judged; None where one of them is missing."""
    limit: float | None = None
    """The largest change towards worse that is not called a regression, as a fraction."""
    detectable: float | None = None
    """Smallest slowdown this comparison finds with 90 % power, as a fraction; None where nothing is estimated."""
    launches: int = 0
    baseline_launches: int = 0
    reason: str = ""
    at: dict[str, Scalar] = {}
    facts: dict[str, Scalar] = {}
    differences: list[str] = []
    """How a fingerprint changed, one sentence each."""
    companions: dict[str, tuple[float, float]] = {}
    """Quieter witnesses of the clock: (baseline, this run)."""

    @property
    def is_failure(self) -> bool:
        """Whether this verdict alone fails a test under the default policy."""
        return self.kind in ("regressed", "changed")


class CaseResult(Record, frozen=True, kw_only=True):
    """Everything measured and said about one case in this run."""

    nodeid: str
    case: Case
    environment: Environment
    launches: list[LaunchRecord]
    verdicts: list[Verdict]
    baseline_path: str = ""
    baseline_software: dict[str, str] = {}
    baseline_peak_memory_bytes: int | None = None
    baseline_phases: dict[str, float] = {}
    update: Literal["", "new", "changed", "kept", "refused"] = ""
    previous: dict[str, float | None] = {}
    """Old baseline values of the metrics an update rewrote; None where there was none."""
    xfail_perf: str = ""
    """Why a regression is expected: the marker's reason, or the baseline's; empty: it is not."""
    against: str = ""
    """What the launches were compared with instead of a stored baseline: ``main (3f2a91c0d4)``."""
    reference_launches: list[LaunchRecord] = []
    """Its launches; each ran in turns with the one of the same index in ``launches``."""


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
    unused: list[EntryName] | None = None
    """Stored entries that no test used. None: the run was not whole or not green, so nobody knows."""


class MetricNoise(Record, frozen=True, kw_only=True):
    """What a calibration found about one metric."""

    metric: str
    unit: str
    median: float
    launches: int
    sigma: float
    """Standard deviation of the logarithm between launches; 0.1 is about 10 %."""
    drift: float
    """The same between rounds, beyond what ``sigma`` explains; 0 where none was seen."""
    iterations_share: float | None
    """Share of the variance between launches that more iterations would take away, 0 to 1; None: not known."""
    detectable: dict[str, float]
    """Smallest slowdown found nine times in ten, as a fraction, for ``"stored+new"`` launches."""
    tolerance: float
    """Proposed: what can be promised with the default number of launches."""
    launches_needed: int | None
    """New launches, and as many stored, that hold the wanted tolerance; None: no number that was tried."""


class CaseNoise(Record, frozen=True, kw_only=True):
    """What a calibration found about one case, the noisiest metric first."""

    case: Case
    launch_s: float
    """Seconds of the median launch."""
    rounds: list[int]
    """Launches of each round."""
    metrics: list[MetricNoise]
    alarms: list[str]
    """Metrics that the rule called regressed between two halves of the same code's launches."""
    comparisons: int
    """Of halves with each other."""


class Calibration(Record, frozen=True, kw_only=True):
    """The file ``distbench calibrate --json`` writes."""

    schema: int
    distbench: str
    platform: str
    software: dict[str, str]
    duration_s: float
    alpha: float
    """One-sided error rate of one comparison."""
    wanted_tolerance: float
    cases: list[CaseNoise]


AnyRecord = TypeVar("AnyRecord", bound=Record)


def replaced(record: AnyRecord, **changes: Any) -> AnyRecord:
    """A copy of a record with some fields changed."""
    return msgspec.structs.replace(record, **changes)


def metric_key(name: str, at: dict[str, Scalar]) -> str:
    """Join a metric's name and its point into the key used in files and tables."""
    if not at:
        return name
    return f"{name}[{','.join(f'{k}={v}' for k, v in sorted(at.items()))}]"
