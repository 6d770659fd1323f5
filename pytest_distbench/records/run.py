"""Everything a run measured and said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from pytest_distbench.records.case import Case, EntryName
from pytest_distbench.records.control import Control
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.experiment import Experiment
from pytest_distbench.records.gpu import GpuNorm
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import Record, replace
from pytest_distbench.records.trace import CaseTrace
from pytest_distbench.records.verdict import Verdict

CaseOutcome = Literal["passed", "failed", "skipped", "xfailed"]


class ReferenceRecord(Record, frozen=True, kw_only=True):
    """What the launches of a case were compared with."""

    kind: Literal["stored", "paired", "nothing"]
    """A stored baseline, launches of another revision or Python that ran beside them, or nothing."""
    name: str = ""
    """Of what ran beside them: ``main (3f2a91c0d4)``."""
    path: str = ""
    """File of the stored baseline, whether it is there or not."""
    software: dict[str, str] = {}
    peak_memory_bytes: int | None = None
    """Of records that were written before peak memory was a metric."""
    phases: dict[str, float] = {}
    gpu_norm: GpuNorm | None = msgspec.field(default=None, name="cards")
    """How the GPUs fared then."""
    gone: list[EntryName] = []
    """Stored entries of tests that are gone, which this case may take the place of: one it was compared with; of
    several that fit equally none."""
    launches: list[LaunchRecord] = []
    """Of what ran beside them; each ran in turns with the one of the same index in ``CaseResult.launches``."""


class Confirmation(Record, frozen=True, kw_only=True):
    """A doubtful comparison with a stored baseline, decided in turns with the revision that recorded it.

    Launches of the same index ran in turns: this tree, that revision, and that revision once more. There are none where
    this tree is that revision.
    """

    revision: str
    """That recorded the baseline: a commit, with a Python where that is another one."""
    here: str
    """What was compared with it: a commit, followed by ``-dirty`` where tracked files differ from it."""
    took_s: float = 0.0
    launches: list[LaunchRecord] = []
    references: list[LaunchRecord] = []
    controls: list[LaunchRecord] = []


class CaseResult(Record, frozen=True, kw_only=True):
    """Everything measured and said about one case in this run."""

    nodeid: str
    line: int = 0
    """Of the test in its file, from 1; 0: not known."""
    case: Case
    environment: Environment
    launches: list[LaunchRecord]
    verdicts: list[Verdict]
    reference: ReferenceRecord
    update: Literal["", "new", "completed", "changed", "rewritten", "moved", "kept", "refused"] = ""
    """What an update made of its entry. *Completed*: what it lacked was added; *rewritten*: nothing in it had changed;
    *moved*: it was that of a test which is gone."""
    previous: dict[str, float | None] = {}
    """Old baseline values of the metrics an update rewrote; None where there was none."""
    suspicion: float = 0.0
    """How far the stored comparison is from what healthy code may show, in standard errors; 0: it raises no doubt."""
    confirmation: Confirmation | None = None
    """What decided the doubt; None: nothing did."""
    unconfirmed: str = ""
    """Why nothing did; empty: there was no doubt, or no wish."""
    control: Control | None = None
    """What was found of a slowdown that was planted; None: none was."""
    trace: CaseTrace | None = None
    """Of a launch more, under torch's profiler, which nothing else here is of; None: none was asked for."""
    xfail_perf: str = ""
    """Why a regression is expected: the marker's reason, or the baseline's; empty: it is not."""
    outcome: CaseOutcome = "passed"
    """What this case made of its test."""
    headline: str = ""
    """One line that says why; empty where it simply passed."""
    test_outcome: Literal["", "passed", "failed", "skipped"] = ""
    """How pytest reports the test that measured it; empty: the record does not say."""
    flaky: list[str] = []
    """Of a test that passed when a plugin ran it again: what ended its earlier attempts, a line each. Else empty."""

    @property
    def is_written(self) -> bool:
        """Whether an update wrote its entry."""
        return self.update not in ("", "kept", "refused")


class RunRecord(Record, frozen=True, kw_only=True):
    """The file ``--distbench-json`` writes."""

    schema: int
    distbench: str
    """Version of this package."""
    started: str
    """UTC, ISO 8601."""
    duration_s: float
    commit: str = ""
    """Of the repository the tests lie in; followed by ``-dirty`` where files differ from it. Empty: it is in none."""
    command: str = ""
    """The command line of pytest, secrets masked."""
    settings: dict[str, str] = {}
    """What the run was asked for, by option, where that is not the default."""
    experiment: Experiment = Experiment()
    """What was stated of it beside what it measured; secrets masked, and addresses unless they were asked for."""
    world_sizes: list[int]
    gpu: bool
    results: list[CaseResult]
    was_interrupted: bool = False
    """Pytest ended before its last test."""
    failed_besides: int = 0
    """Tests that failed and have no case that did, and modules that could not be collected."""
    record_command: str = ""
    """What records the cases without a baseline, secrets masked; empty in files of earlier versions."""
    unused: list[EntryName] | None = None
    """Stored entries that no test used. None: the run was not whole or not green, so nobody knows."""


def told_apart(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The same cases; where tests of several files have one name, with as much of the path as tells them apart."""
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
    """Path -> the fewest parts at its end that no other of these paths ends with."""
    parts = {path: PurePosixPath(path).parts for path in paths}
    ends = {}
    for path, own in parts.items():
        others = [other for name, other in parts.items() if name != path]
        count = next((n for n in range(1, len(own)) if all(o[-n:] != own[-n:] for o in others)), len(own))
        ends[path] = "/".join(own[-count:])
    return ends
