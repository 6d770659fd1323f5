"""Everything a run measured and reported: verdicts, injected slowdowns, and metrics for the trend over many runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import msgspec

from pytest_distbench.records.case import BaselineName, Case
from pytest_distbench.records.environment import Environment, Experiment, GpuReport
from pytest_distbench.records.iteration import CaseTrace, Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS, Better, OfKind
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Bound, Sample, Scalar, metric_name
from pytest_distbench.records.places import CasePlaces
from pytest_distbench.records.reasons import Reason, ReasonCode, Severity, VerdictName, reason
from pytest_distbench.records.record import Number, Record, replace

Statistic = Literal[
    "median",
    "geometric mean",
    "sqrt(min x p25)",
    "mean",
    "all iterations",
    "A/B",
    "A/B sqrt(min x p25)",
    "A/B mean",
    "A/B all iterations",
    "A/B CPU time",
    "mean of seeds",
    "trimmed mean of seeds",
    "step that differs most",
    "one rank",
    "norm",
]
"""Statistic by which this run and the baseline are compared."""


class StatisticWords(NamedTuple):
    """Words for a statistic: ``shown`` in the cell of a table; ``means``: how it is computed from the launches."""

    shown: str
    means: str


def _average(shown: str, of_each: str, *, of: str = "launches") -> StatisticWords:
    return StatisticWords(shown, f"geometric mean over the {of}; of each {of_each}")


_BY_ITERATIONS: list[tuple[Statistic, Statistic, str, str]] = [
    ("sqrt(min x p25)", "A/B sqrt(min x p25)", "lower quantile", "sqrt(fastest x 25th percentile) of its iterations"),
    ("mean", "A/B mean", "mean iteration", "the mean of its iterations but the slowest"),
    ("all iterations", "A/B all iterations", "all iterations", "the geometric mean of its iterations"),
]

STATISTICS: dict[Statistic, StatisticWords] = {
    "median": StatisticWords("median launch", "median of the launches (of a timing: 25th percentile of iterations)"),
    "geometric mean": StatisticWords("mean launch", "geometric mean of the launches"),
    "A/B": _average("A/B", "its value (of a timing: 25th percentile of iterations)", of="pairs of launches"),
    **{name: _average(shown, of_each) for name, _, shown, of_each in _BY_ITERATIONS},
    **{name: _average(f"{shown}, A/B", of_each, of="pairs of launches") for _, name, shown, of_each in _BY_ITERATIONS},
    "A/B CPU time": _average("CPU time, A/B", "the CPU time of an iteration, mean over ranks", of="pairs of launches"),
    "mean of seeds": StatisticWords("mean of seeds", "mean of the seeds, each the mean of its launches"),
    "trimmed mean of seeds": StatisticWords(
        "trimmed mean of seeds", "mean of the seeds without the lowest and the highest, from five seeds on"
    ),
    "step that differs most": StatisticWords(
        "step that differs most", "value of the curve at the step where it differs most from the baseline's"
    ),
    "norm": StatisticWords("norm", "norm of all tensors: of the seeds the mean"),
    "one rank": StatisticWords(
        "one rank", "memory of a rank, sorted by size: its smallest launch, and the baseline's largest"
    ),
}
"""Words of each statistic, by its name in files."""


class Finding(OfKind, frozen=True, kw_only=True):
    """Verdict on a metric, likely cause, or remark about a run."""

    case: str = ""  # title of the case that a remark is about; "" if it is about several, or stands with its case
    metric: str = ""  # name and point: ``latency[message_bytes=4096]``; "" if it is about no metric
    code: ReasonCode  # why a verdict is given, or what was found
    kind: VerdictName = "unchanged"  # follows from the code
    better: Better = "info"
    unit: str = ""
    current: Number | None = None
    baseline: Number | None = None
    statistic: Statistic = "median"  # of the launches of each side: the number that is judged
    ratio: float | None = None
    """current / baseline, computed from both; None if one of them is missing, or the baseline is 0."""
    threshold: float | None = None  # largest change towards worse that is no regression, as a fraction
    mde: float | None = None
    """Smallest slowdown this comparison finds with 90 % power, as a fraction; None if nothing is estimated."""
    launches: int = 0
    baseline_launches: int = 0
    reason: str = ""  # one sentence
    at: dict[str, Scalar] = {}
    facts: dict[str, Scalar] = {}
    differences: list[str] = []  # how a fingerprint changed, and details of a cause: one sentence each
    companions: dict[str, tuple[float, float]] = {}  # secondary signals of a timing: (baseline, this run)
    bounds: list[Bound] = []  # bounds of the value, violated or not
    is_open: bool = False  # one more launch could change it

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "kind", reason(self.code).verdict)
        ratio = self.current / self.baseline if self.current is not None and self.baseline else None
        msgspec.structs.force_setattr(self, "ratio", ratio if ratio is None or math.isfinite(ratio) else None)

    @property
    def is_undecided(self) -> bool:
        """Whether it was evaluated, and remained ambiguous. A finding without a baseline may be undecided too."""
        return self.kind == "inconclusive" and self.row.is_comparable

    @property
    def row(self) -> Reason:
        """The row of the finding's reason code: its verdict, and what follows from it."""
        return reason(self.code)

    @property
    def severity(self) -> Severity:
        return self.row.severity

    @property
    def text(self) -> str:
        """The finding's sentence behind its mark, a character such as ``!`` for a regression."""
        return f"{self.row.mark} {self.reason}" if self.row.mark else self.reason

    @property
    def name(self) -> str:
        return metric_name(self.metric)

    @property
    def is_judged(self) -> bool:
        """Whether it counts: the metric's kind is judged, or has a bound."""
        return super().is_judged or bool(self.bounds)

    @property
    def is_exact(self) -> bool:
        """Whether one launch is enough to decide it: the metric is exact, or missing."""
        return self.kind == "missing" or METRIC_KINDS[self.better].repeats_exactly

    @property
    def is_failure(self) -> bool:
        """Whether this verdict alone fails a test under the default policy."""
        return self.row.fails


Step = Literal["", "stored", "screening", "turns", "bound"]
"""What decided whether an injected slowdown was detected: nothing; a comparison with the baseline; a screening;
alternating launches, delayed and not; a bound of the number."""


class Control(Record, frozen=True, kw_only=True):
    """Slowdown that was injected into a case, and what the run detected of it."""

    share: float = 0.0  # fraction by which what was timed took longer
    is_chosen: bool = False  # the user chose the share; else it follows from the tolerance
    step: Step = ""  # the one that decided
    verdicts: list[Finding] = []
    """Verdicts on the timings: against the baseline, or against interleaved launches without delay; see ``step``."""
    has_baseline: bool = False  # without one nothing was screened
    launches: int = 0  # with the delay, and without it for the A/B
    took_s: float = 0.0
    left_out: list[str] = []
    """Timings that the delay cannot reach: those that a script of ranks takes and prints itself."""
    why_alone: str = ""  # why no A/B was possible, or ""
    why_not: str = ""  # why nothing could be tried at all, or ""

    @property
    def found(self) -> list[Finding]:
        """Timings in which the run detected the slowdown."""
        return [v for v in self.verdicts if is_found(v)]


def is_found(verdict: Finding) -> bool:
    """Whether a verdict on a slowed number would fail its test: the injected slowdown was detected."""
    return verdict.kind == "regressed" or verdict.row.may_be_confirmed


CaseOutcome = Literal["passed", "failed", "skipped", "xfailed", "advisory"]
Decision = Literal["", "launch", "nothing_judged", "bound", "refused", "failed", "unaccepted", "new", "not_found"]


class OtherSideRecord(Record, frozen=True, kw_only=True):
    """Other side of a case's comparison."""

    kind: Literal["stored", "paired", "nothing"]
    """Stored baseline, launches of another revision or Python that alternated with the case's, or nothing."""
    name: str = ""  # name of the other revision: ``main (3f2a91c0d4)``
    path: str = ""  # file of the stored baseline, which need not exist
    software: dict[str, str] = {}
    peak_memory_bytes: int | None = None  # of records from before peak memory was a metric
    phases: dict[str, float] = {}
    gpu_norm: GpuReport | None = msgspec.field(default=None, name="cards")  # state of the GPUs then
    metrics: dict[str, list[Sample]] = {}  # of the stored baseline, as it was then
    fingerprints: dict[str, Fingerprint] = {}  # of the same
    launches: list[LaunchRecord] = []
    """Launches of the other side; each alternated with the one of the same index in ``CaseResult.launches``."""


class Confirmation(Record, frozen=True, kw_only=True):
    """Suspicious comparison with a stored baseline, confirmed by interleaved A/B with the baseline commit.

    Launches of the same index alternated: the candidate, the baseline commit, and the baseline commit once more (A/A).
    If the candidate is that commit, its launches are alone.
    """

    revision: str  # baseline commit, with a Python if that is another one
    here: str  # candidate: a commit, followed by ``-dirty`` if tracked files differ from it
    took_s: float = 0.0
    launches: list[LaunchRecord] = []
    baselines: list[LaunchRecord] = msgspec.field(default_factory=list, name="references")
    controls: list[LaunchRecord] = []


class CaseResult(Record, frozen=True, kw_only=True):
    """Everything measured and said about one case in this run."""

    nodeid: str
    line: int = 0  # of the test in its file, from 1; 0: not known
    case: Case
    environment: Environment
    launches: list[LaunchRecord]
    verdicts: list[Finding]
    reference: OtherSideRecord
    update: Literal["", "new", "completed", "changed", "rewritten", "kept", "refused"] = ""
    """What an update did to its baseline. *Completed*: it lacked something; *rewritten*: nothing in it had changed."""
    previous: dict[str, float | None] = {}
    """Old baseline values of the metrics an update rewrote; None for a metric without one."""
    recorded: Finding | None = None
    """How good the baseline is that an update wrote; or None if it wrote none, or one without timings."""
    suspicion: float = 0.0
    """Standard errors by which the stored comparison exceeds what healthy code may show; 0: not suspicious."""
    confirmation: Confirmation | None = None  # what confirmed or cleared it, or None
    unconfirmed: str = ""  # why nothing did, or "" if nothing was suspicious, or confirming was off
    control: Control | None = None  # what was detected of an injected slowdown, or None
    trace: CaseTrace | None = None
    """Trace of one more launch, under torch's profiler, which counts for nothing else here; or None."""
    places: CasePlaces | None = None
    """Lines of code that explain a timing which A/B found regressed; or None if there is no such timing or line."""
    memory_places: CasePlaces | None = None  # lines whose tensors hold the memory by which the peak regressed, or None
    xfail_perf: str = ""  # why a regression is expected: the marker's reason, or the baseline's; or ""
    advisory: str = ""  # why its verdicts do not fail its test: the marker's reason, or the option; or ""
    is_advisory_of_timings: bool = False  # only those of timings and memory are advisory; others fail the test
    outcome: CaseOutcome = "passed"  # what this case made of its test; *advisory*: its test would have failed
    decision: Decision = ""  # what decided that; "" if it simply passed
    headline: str = ""  # one line that says why; "" if it simply passed
    causes: list[Finding] = []  # what may explain that it failed, the most likely first
    test_outcome: Literal["", "passed", "failed", "skipped"] = ""
    """How pytest reports the test that measured it, or "" if the record does not say."""
    flaky: list[str] = []
    """What ended earlier attempts of a test that passed when a plugin ran it again, a line each."""

    def launches_of(self, verdict: Finding) -> list[LaunchRecord]:
        """Launches behind the verdict's number of this run: the confirmation's, if that decided."""
        is_confirmed = verdict.statistic.startswith("A/B") or verdict.code in ("cleared", "slower-machine")
        turns = self.confirmation if is_confirmed else None
        return turns.launches if turns is not None and turns.launches else self.launches

    @property
    def is_written(self) -> bool:
        return self.update not in ("", "kept", "refused")

    @property
    def lacks_baseline(self) -> bool:
        """Whether nothing that is judged has a baseline, and no verdict requires one."""
        judged = [v for v in self.verdicts if METRIC_KINDS[v.better].is_judged]
        may_lack = ("within-bound", "bound")
        needless = [v for v in judged if v.kind == "new" or v.is_undecided or v.code in may_lack]
        return bool(judged) and needless == judged and all(v.baseline is None for v in judged)

    @property
    def model(self) -> str:
        """Model that was compared without a test file, as ``--distbench-model`` names it; or ""."""
        if not {"model", "layout"} <= self.case.params.keys():
            return ""
        model = str(self.case.params["model"])
        return model if ":" in model else self.nodeid.partition("[")[0]  # two files may have functions of one name

    @property
    def test_name(self) -> str:
        """The test without its file, unless tests of several files have its name."""
        return f"{self.case.place and f'{self.case.place}::'}{name_in_file(self.nodeid)}"


def name_in_file(nodeid: str) -> str:
    """A test without its file: ``TestA::test_b[ws2]``. Ids may contain the separators of the name."""
    return nodeid.partition("::")[2] or nodeid


class RunRecord(Record, frozen=True, kw_only=True):
    """File that ``--distbench-json`` writes."""

    schema: int
    distbench: str  # version of this package
    started: str  # UTC, ISO 8601
    duration_s: float
    commit: str = ""
    """Commit of the tests' repository, followed by ``-dirty`` if files differ from it; or "" without a repository."""
    branch: str = ""  # branch that was checked out, secrets masked; "" if unknown
    pull_request: str = ""  # its number, as the CI system says; or ""
    host: str = ""  # name of the machine that pytest ran on; empty unless addresses were asked for
    command: str = ""  # the command line of pytest, secrets masked
    settings: dict[str, str] = {}  # options of the run that are not the default
    experiment: Experiment = Experiment()
    """User's statements about the run; secrets masked, and addresses unless they were asked for."""
    world_sizes: list[int]
    gpu: bool
    results: list[CaseResult]
    remarks: list[Finding] = []  # on the run as a whole
    was_interrupted: bool = False  # pytest ended before its last test
    failed_besides: int = 0  # failed tests without a failed case, and modules that could not be collected
    record_command: str = ""
    """Command that records the cases without a baseline, secrets masked; "" in files of earlier versions."""
    missing: list[BaselineName] = []
    """Baselines whose test is gone from what was collected: the run fails, unless it is an update."""
    unused: list[BaselineName] | None = None
    """Baselines that no test used, or None if the run was incomplete or not green."""


def number_hosts(result: CaseResult) -> CaseResult:
    """The case with ``host0``, ``host1`` and so on in place of host names, in the order of the ranks."""
    launches = []
    for launch in result.launches:
        numbers = {name: f"host{number}" for number, name in enumerate(dict.fromkeys(launch.hosts))}
        launches.append(replace(launch, hosts=[numbers[name] for name in launch.hosts]))
    return replace(result, launches=launches)


def told_apart(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The same cases with ``case.place`` set for tests of one name in several files: the end of the file's path."""
    files: dict[str, set[str]] = {}
    for result in results:
        files.setdefault(result.case.function, set()).add(result.case.test.partition("::")[0])
    places = {function: _shortest_ends(paths) for function, paths in files.items() if len(paths) > 1}
    return [
        replace(r, case=replace(r.case, place=places[r.case.function][r.case.test.partition("::")[0]]))
        if r.case.function in places
        else r
        for r in results
    ]


def _shortest_ends(paths: Iterable[str]) -> dict[str, str]:
    parts = {path: PurePosixPath(path).parts for path in paths}
    ends = {}
    for path, own in parts.items():
        others = [other for name, other in parts.items() if name != path]
        count = next((n for n in range(1, len(own)) if all(o[-n:] != own[-n:] for o in others)), len(own))
        ends[path] = "/".join(own[-count:])
    return ends
