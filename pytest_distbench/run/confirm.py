"""What confirms a doubt about a stored comparison: launches in turns with the revision that recorded the baseline."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.judging.comparable import version_changes
from pytest_distbench.judging.confirmation import LOOKS, Sides, by_the_machine, confirm, ratios, split_change, undecided
from pytest_distbench.judging.digits import are_asked_about
from pytest_distbench.judging.judgement import Judgement
from pytest_distbench.judging.screening import SUSPICIOUS
from pytest_distbench.machine.interpreters import Interpreter, find_interpreter
from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Confirmation
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.run.against import Variant
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.samples import Samples
from pytest_distbench.run.settings import ConfirmSettings
from pytest_distbench.run.untracked import find_links
from pytest_distbench.run.worktree import Revision
from pytest_distbench.store.recording import NotRecorded, recording_commit

ARMS = 3
"""This tree, the revision that recorded the baseline, and that revision once more."""

_START_S = 4.0
"""What the launchers of the other arms take to start, once."""

_SLOWER = 10.0
"""A launch in turns may take so many times what this tree's took alone, and :data:`_GRACE_S` more."""
_GRACE_S = 30.0


class Recorders:
    """Finds the revision that recorded a baseline, in the repository of the tests.

    Args:
        settings: what the user asked for.
        baselines: their folder; what lies there does not run.
        root: folder of the tests; links are relative to it.
        folder: that pytest was started in; the path of a Python is relative to it.
    """

    def __init__(self, settings: ConfirmSettings, baselines: Path, root: Path, folder: Path) -> None:
        self.settings = settings
        self._baselines = baselines
        self._root = root
        self._folder = folder
        self._known: dict[Path, Variant | NotRecorded] = {}

    def variant(self, path: Path) -> Variant:
        """The revision that recorded the baseline in a file.

        Raises:
            NotRecorded: nobody knows it; the text says why.
        """
        if path not in self._known:
            try:
                self._known[path] = self._find(path)
            except NotRecorded as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, NotRecorded):
            raise found
        return found

    def of_its_time(self, variant: Variant) -> Variant | None:
        """A revision under the Python that the user has kept for it; None: there is none."""
        return dataclasses.replace(variant, interpreter=self._interpreter) if self._interpreter is not None else None

    @functools.cached_property
    def _interpreter(self) -> Interpreter | None:
        given = self.settings.interpreter
        return find_interpreter(given, self._folder) if given else None

    @functools.cached_property
    def here(self) -> str:
        """The commit that is checked out, followed by ``-dirty`` where tracked files differ."""
        return git.describe_commit(self._root)

    def _find(self, path: Path) -> Variant:
        commit = recording_commit(path, self._top)
        asked = self.settings
        try:
            return Variant(
                revision=Revision("", commit, self._top),
                links=find_links(asked.links, folder=self._root, root=self._top),
                interpreter=None,
                is_itself=self._is_here(commit, path),
            )
        except ConfigurationError as error:
            raise NotRecorded(str(error)) from None

    def _is_here(self, commit: str, path: Path) -> bool:
        """Whether nothing that git tracks differs from a commit, but baselines of the same platform and others."""
        baselines = self._baselines.resolve()
        if not path.resolve().is_relative_to(baselines) or not baselines.is_relative_to(self._top):
            return False
        rest = f":(exclude,top){baselines.relative_to(self._top).as_posix()}"
        return git.run(self._top, "diff", "--quiet", commit, "--", ".", rest).returncode == 0

    @functools.cached_property
    def _top(self) -> Path:
        try:
            done = git.run(self._root, "rev-parse", "--show-toplevel")
        except OSError:
            raise NotRecorded("there is no git on PATH") from None
        if done.returncode:
            raise NotRecorded("the tests are not in a git repository")
        return Path(done.stdout.strip()).resolve()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A case whose stored comparison is in doubt.

    Attributes:
        result: of the stored comparison.
        samples: it was made with.
        variant: that recorded its baseline.
        sources: keys of the cases that its number is made of; none: it was launched itself.
        tolerances: by metric, as fractions.
        entry: the baseline, to which the digits of a training are compared.
        by_clock: whether its clocks are in doubt, and not the digits of a training alone.
    """

    result: CaseResult
    samples: Samples
    variant: Variant
    sources: Sequence[str]
    tolerances: Mapping[str, float]
    entry: BaselineEntry | None = None
    by_clock: bool = True

    @property
    def is_suspicious(self) -> bool:
        """Whether something speaks for a slowdown, or for another training; else it is looked into last."""
        other = any(v.kind == "regressed" and are_asked_about(v) for v in self.result.verdicts)
        return self.result.suspicion >= SUSPICIOUS or other

    @property
    def looks(self) -> Sequence[int]:
        """Numbers of samples after which is judged. Digits repeat: one of each side says it."""
        return LOOKS if self.by_clock else (1,)

    @property
    def takes_s(self) -> float:
        """About how long it takes to settle it."""
        walls = [launch.wall_s for launch in self.result.launches]
        return 0.0 if self.variant.is_itself else _START_S + self.looks[0] * ARMS * min(walls, default=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A test that is run again to settle its doubts.

    Attributes:
        samples: of its first run, by key of the case: what is beyond doubt is not measured again.
        results: of the same.
        doubts: by the same keys.
        beside: what the launches of a case run in turns with, by the same keys; those of sources too.
        cases: that this run of pytest confirms.
        until: the moment (monotonic) from which on no open answer is worth a further launch.
        left: why a doubt stays and nothing of its case is launched in turns, by the same keys.
    """

    samples: Mapping[str, Samples]
    results: Mapping[str, CaseResult]
    doubts: Mapping[str, Doubt]
    beside: Mapping[str, Variant]
    cases: int
    until: float
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Confirmed:
    """The reference of a case in doubt: judges what ran in turns with the revision that recorded its baseline."""

    def __init__(
        self, request: CaseRequest, doubt: Doubt, again: Again, here: str, *, of_its_time: Samples | None = None
    ) -> None:
        self._request = request
        self._of_its_time = of_its_time
        self._doubt = doubt
        self._again = again
        self._here = here
        self._began_at = time.monotonic()

    @property
    def _why_not(self) -> str:
        """Why the doubt stays; empty: it is settled."""
        return self._again.left.get(self._request.case.key, "")

    def looks(self) -> Iterator[int]:
        """Numbers of samples after which is judged; the first is made in any case, the others while there is time."""
        for look in self._doubt.looks:
            if look > self._doubt.looks[0] and time.monotonic() > self._again.until:
                return
            yield look

    def judge(self, samples: Samples) -> list[Judgement]:
        """Judge what there is; an open judgement asks for more."""
        stored = self._doubt.result.verdicts
        if samples.alone or not samples.launches:
            told = stored if self._doubt.variant.moved else self.without_turns(samples.alone)
            return [Judgement(v, is_open=False) for v in told]  # a test that moved is no way out of a red
        return confirm(
            self._request.terms,
            self._request.case,
            stored,
            Sides(launches=samples.launches, references=samples.references, controls=samples.controls),
            tolerances=self._doubt.tolerances,
            revision=str(self._doubt.variant),
            cases=self._again.cases,
            entry=self._doubt.entry,
            by_clock=self._doubt.by_clock,
        )

    def split(self, samples: Samples, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts, with the software's share in a change where the old software is at hand."""
        pairs = self._of_its_time
        if pairs is None or not self._doubt.by_clock or not any(v.kind in ("regressed", "machine") for v in verdicts):
            return list(verdicts)
        while len(pairs) < LOOKS[0] and not pairs.alone and not pairs.failed:
            pairs.add()
        if pairs.alone or pairs.failed:
            return list(verdicts)
        total = ratios(pairs.references, pairs.launches)
        code = ratios(samples.references, samples.launches) or dict.fromkeys(total, 1.0)
        changes = version_changes(pairs.references[0].software, pairs.launches[0].software)
        return split_change(verdicts, code=code, total=total, software=", ".join(changes) or "software")

    def without_turns(self, reason: str) -> list[Verdict]:
        """The verdicts where nothing ran in turns."""
        stored, variant = self._doubt.result.verdicts, self._doubt.variant
        if variant.is_itself:
            same = (
                f"no tracked file but baselines differs from {variant}, which recorded the baseline; what git does not "
                "track (an environment variable, an ignored file) may"
            )
            return by_the_machine(stored, self._doubt.tolerances, same)
        return undecided(stored, f"not confirmed: {reason}")

    def conclude(self, samples: Samples, verdicts: Sequence[Verdict]) -> CaseResult:
        """The record of the case: that of the stored comparison, with what was made of it."""
        result = replace(self._doubt.result, verdicts=list(verdicts))
        if self._why_not:
            return result
        return replace(
            result,
            confirmation=Confirmation(
                revision=str(self._doubt.variant),
                here=self._here,
                took_s=time.monotonic() - self._began_at,
                launches=list(samples.launches[: len(samples.references)]),
                references=list(samples.references),
                controls=list(samples.controls),
            ),
        )

    def grow(self, samples: Samples) -> list[Verdict]:
        """Add samples until every answer is clear, or no more are worth it."""
        if self._doubt.variant.is_itself or self._why_not:
            return self.without_turns(self._why_not)
        verdicts: list[Verdict] = []
        open_metrics: list[str] = []
        for look in self.looks():
            try:
                while len(samples) < min(look, samples.most) and not samples.failed:
                    samples.add(only=open_metrics)
            except LauncherError as error:
                samples.alone = str(error)
            if samples.failed:
                return verdicts
            judgements = self.judge(samples)
            verdicts = [judgement.verdict for judgement in judgements]
            open_metrics = [j.verdict.metric for j in judgements if j.is_open]
            if not open_metrics or samples.alone or len(samples) < look:
                return verdicts
        ended = "the time for it was up: --distbench-confirm-budget"
        return [replace(v, reason=f"{v.reason}; {ended}") if v.metric in open_metrics else v for v in verdicts]


def in_time(request: LaunchRequest, launched: Sequence[float]) -> LaunchRequest:
    """A request whose launches end in a bounded time, whatever another revision does in them.

    Args:
        request: it.
        launched: seconds that launches of this tree took.
    """
    return replace(request, timeout_s=min(request.timeout_s, _SLOWER * max(launched, default=0.0) + _GRACE_S))
