"""What confirms a doubt about a stored comparison: launches in turns with the revision that recorded the baseline."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.judging.confirmation import (
    Evaluated,
    Known,
    are_asked_about,
    confirm,
    is_beyond,
    judge_in_turns,
    not_slower,
    ratios,
    seen_again,
    split_change,
    undecided,
)
from pytest_distbench.judging.screening import SUSPICIOUS
from pytest_distbench.judging.terms import version_changes
from pytest_distbench.judging.thresholds import LOOKS
from pytest_distbench.machine.hardware import find_interpreter
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Confirmation, Finding
from pytest_distbench.run.against import Evaluation, Variant, differing, find_links
from pytest_distbench.run.directory import Revision
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.sources import Reference, Source, SourceFailed, take_turns
from pytest_distbench.store.baselines import NotRecorded, read_file, recordings

ARMS = 3
"""This tree, the revision that recorded the baseline, and that revision once more."""

START_S = 4.0
"""What the launchers of a side take to start, once."""

_ENDED = "--distbench-confirm=auto:SECONDS"

_LIKELY = LOOKS[2]
"""Pairs that an answer is likely to take."""

_SLOWER = 10.0
"""A launch in turns may take so many times what this tree's took alone, and :data:`_GRACE_S` more."""
_GRACE_S = 30.0


class Recorders:
    """Finds the revision that recorded a baseline, in the repository of the tests."""

    def __init__(self, settings: Settings, root: Path, folder: Path) -> None:
        self.settings = settings
        self._baselines = settings.baselines
        self._root = root
        self._folder = folder
        self._known: dict[Path, tuple[Variant, BaselineEntry | None] | NotRecorded] = {}

    def find(self, path: Path) -> tuple[Variant, BaselineEntry | None]:
        """The revision that recorded the baseline in a file; and its baseline, where a later one is stored.

        Raises:
            NotRecorded: nobody knows it; the text says why.
        """
        if path not in self._known:
            try:
                known = recordings(path, self._top)
                (last, _, of_last), before = next(known), None
                # a commit that changed more than baselines is no witness of its own: then it is the recorder before it
                if self._is_here(last, path) and not self._is_here(f"{last}^", path, until=last):
                    before = next(known, None)
                commit, _, file = before or (last, {}, of_last)
                entry = file.entry if before is not None and file is not None else None
                self._known[path] = self._variant(commit, path, was="" if file is None else file.test), entry
            except NotRecorded as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, NotRecorded):
            raise found
        return found

    def of_its_time(self, variant: Variant) -> Variant | None:
        given = self.settings.recorders_python
        return dataclasses.replace(variant, interpreter=find_interpreter(given, self._folder)) if given else None

    @functools.cached_property
    def here(self) -> str:
        """The commit that is checked out, followed by ``-dirty`` where tracked files differ."""
        return git.describe_commit(self._root)

    def _variant(self, commit: str, path: Path, *, was: str) -> Variant:
        """The revision of a commit, in which the test of a baseline was called as it ``was``; empty: nobody knows."""
        tests = (read_file(path).test, was) if was else ()
        places = [(self._root / test.partition("::")[0]).resolve() for test in tests]
        moved = ((places[0], places[1]), (places[0].parent, places[1].parent)) if len({*places}) > 1 else ()
        try:
            return Variant(
                moved=moved,
                revision=Revision("", commit, self._top),
                links=find_links(self.settings.against_link, folder=self._root, root=self._top),
                interpreter=None,
                is_itself=self._is_here(commit, path),
            )
        except ConfigurationError as error:
            raise NotRecorded(str(error)) from None

    def _is_here(self, commit: str, path: Path, *, until: str = "") -> bool:
        """Whether no code differs from a commit, here or in a later one: but baselines all that git tracks is equal.

        A Python file here that git does not know is code that the commit has not.
        """
        baselines = self._baselines.resolve()
        if not path.resolve().is_relative_to(baselines) or not baselines.is_relative_to(self._top):
            return False
        rest = f":(exclude,top){baselines.relative_to(self._top).as_posix()}"
        changed = git.run(self._top, "diff", "--quiet", commit, *filter(None, [until]), "--", ".", rest)
        if changed.returncode or until:
            return changed.returncode == 0
        return not git.run(self._top, "ls-files", "--others", "--exclude-standard", "--", "*.py").stdout.strip()

    @functools.cached_property
    def _top(self) -> Path:
        try:
            done = git.run(self._root, "rev-parse", "--show-toplevel")
        except OSError:
            raise NotRecorded("there is no git on PATH") from None
        if done.returncode:
            raise NotRecorded("the tests are not in a git repository")
        return Path(done.stdout.strip()).resolve()


_COMMIT = "; commit a test together with its baseline, so that A/B can run both"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubt(Known):
    """A case whose stored comparison is in doubt.

    Attributes:
        variant: the revision that recorded the baseline, made ready to be compared with.
        sources: keys of the cases that its number is made of; none: it was launched itself.
        evaluation: what pytest itself evaluated for it; None: nothing.
    """

    result: CaseResult
    variant: Variant
    sources: Sequence[str] = ()
    evaluation: Evaluation | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether something speaks for a slowdown, or for another training; else it is looked into last."""
        other = any(v.row.may_be_confirmed and are_asked_about(v) for v in self.result.verdicts)
        return self.result.suspicion >= SUSPICIOUS or other

    @property
    def looks(self) -> Sequence[int]:
        """Numbers of launches after which is judged. Digits repeat: one of each side says it."""
        return LOOKS if self.by_clock else (1,)

    @property
    def takes_s(self) -> float:
        return self._seconds(self.looks[0])

    @property
    def likely_s(self) -> float:
        return self._seconds(min(_LIKELY, self.looks[-1]))

    def _seconds(self, pairs: int) -> float:
        walls = [launch.wall_s for launch in self.result.launches]
        launch_s = statistics.median(walls) if walls else 0.0
        return LOOKS[0] * launch_s if self.variant.is_itself else START_S + ARMS * pairs * launch_s


class Allowance:
    """Seconds in which launches can be made. Waiting for others that measure on this host is none of them."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    @contextlib.contextmanager
    def waiting(self, hold: AbstractContextManager[None]) -> Iterator[None]:
        asked_at = time.monotonic()
        with hold:
            self._until += time.monotonic() - asked_at
            yield


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A test that is run again to settle its doubts.

    Attributes:
        sources: of its first run, by key of the case: what is beyond doubt is not measured again.
        doubts: by the same keys.
        beside: what the launches of a case run in turns with, by the same keys; those of sources too.
        cases: that this run of pytest confirms.
        allowance: what the first look may take at most; further ones are begun where they fit into what is left of the
            budget.
        others_s: of the budget, what first looks at others in doubt are going to take: nothing is seen twice at their
            cost.
        left: why a doubt stays and nothing of its case is launched in turns, by the same keys.
    """

    sources: Mapping[str, Source]
    results: Mapping[str, CaseResult]
    doubts: Mapping[str, Doubt]
    beside: Mapping[str, Variant]
    cases: int
    allowance: Allowance
    budget: Allowance
    others_s: float = 0.0
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Interleaved(Reference):
    """Launches of this tree that run in turns with others, as long as there is time."""

    def __init__(self, request: CaseRequest, looks: Sequence[int], first: Allowance, budget: Allowance) -> None:
        super().__init__(request)
        self._looks = looks
        self._first = first
        self._budget = budget
        self.begin()

    def begin(self) -> None:
        self._began_at = self._added_at = time.monotonic()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began_at

    def looks(self) -> Sequence[int]:
        return self._looks

    def may_begin(self, source: Source, look: int) -> bool:
        """Whether what is missing for a look takes no longer than there is time, by what the others took."""
        left = self._first if look == self._looks[0] else self._budget
        now = time.monotonic()
        last_s, self._added_at = now - self._added_at, now
        if not len(source):
            return True
        each_s = max(last_s, (now - self._began_at) / len(source))
        return each_s * (look - len(source)) <= left.left_s

    def give_up(self, source: Source, error: LauncherError) -> None:
        source.alone, source.most = str(error), len(source)

    def settle(self, source: Source) -> list[Finding]:
        """What is found, as far as there is time; nothing where that is not enough for the first look."""
        ended = f"its time was used up: {_ENDED}"
        return [
            replace(f, code="not-confirmed", reason=f"{f.reason}; {ended}", is_open=False) if f.is_open else f
            for f in self.decide(source)
        ]


class InDoubt(Interleaved):
    """A case in doubt: judged by what ran in turns with the revision that recorded its baseline."""

    def __init__(self, request: CaseRequest, doubt: Doubt, again: Again) -> None:
        super().__init__(request, doubt.looks, again.allowance, again.budget)
        self._doubt = doubt
        self._again = again
        self._why_not = again.left.get(request.case.key, "")

    def judge(self, source: Source) -> list[Finding]:
        terms, case, doubt = self.request.terms, self.request.case, self._doubt
        if source.alone or not source.launches:
            if doubt.variant.moved:  # a test that moved is no way out of a red
                return list(doubt.verdicts)
            first = doubt.later(terms, case, doubt.launches, is_last=False) if source.is_new else {}
            told = f"{source.alone}; the comparison with the stored baseline counts{_COMMIT * source.is_new}"
            left = zip(doubt.verdicts, self._without_turns(source.alone), strict=True)
            return [
                replace(v, code="beyond-threshold", reason=told) if is_beyond(first.get(v.metric)) else w
                for v, w in left
            ]
        if doubt.variant.is_itself:
            later = doubt.later(terms, case, source.launches)
            reason = (
                f"the code equals the baseline commit {doubt.variant}, and {len(source)} more launches are {{}} "
                "its noise"
            )
            found = [(v, later.get(v.metric)) for v in doubt.verdicts]
            return [
                replace(not_slower(v, f, reason.format("beyond" if is_beyond(f) else "within")), is_open=False)
                for v, f in found
            ]
        return confirm(
            terms,
            case,
            doubt,
            source.turns,
            revision=str(doubt.variant),
            cases=self._again.cases,
            evaluated=self._evaluated,
        )

    def _evaluated(self) -> Evaluated:
        evaluation, revision = self._doubt.evaluation, self._doubt.variant.revision
        if evaluation is None or revision is None:
            return (), True
        return differing(evaluation, revision, self._doubt.variant.moved)

    def _without_turns(self, reason: str) -> list[Finding]:
        return undecided(self._doubt.verdicts, f"not confirmed: {reason}")

    def settle(self, source: Source) -> list[Finding]:
        if self._why_not:
            return self._without_turns(self._why_not)
        findings = super().settle(source)
        if findings or source.failed:
            return findings
        return self._without_turns(f"{len(source)} of {self._looks[0]} pairs used all of the time: {_ENDED}")

    def see_again(self, source: Source, second: Source | None, verdicts: list[Finding]) -> list[Finding]:
        """The verdicts, where what is red in turns has been so in other process trees too, paths exchanged.

        With at most as many pairs. Where that does not fit into the time, or does not run, the first red stands.
        """
        if second is None or not self._doubt.by_clock or not source.references or source.alone or source.failed:
            return verdicts
        slower = {key for key, f in self.in_turns(source).items() if f.kind == "regressed"}
        red = [v.metric for v in verdicts if v.row.may_be_confirmed and v.metric in slower]
        others = [d.takes_s for key, d in self._again.doubts.items() if key != self.request.case.key]
        again = _Exchanged(
            self,
            [look for look in self._looks if look <= len(source)],
            self._again.budget,
            verdicts=verdicts,
            red=red,
            each_s=self.took_s / len(source),  # with its share of the start, as there is one again
            reserved_s=self._again.others_s + sum(others),
        )
        return again.seen(second) if red else verdicts

    def in_turns(self, source: Source) -> Mapping[str, Finding]:
        return judge_in_turns(
            self.request.terms,
            self.request.case,
            source.turns,
            tolerances=self._doubt.in_turns,
            name=str(self._doubt.variant),
            cases=self._again.cases,
        )

    def split(self, source: Source, pairs: Source | None, verdicts: list[Finding]) -> list[Finding]:
        """The verdicts, with the software's share in a change where the old software is at hand."""
        is_slower = any(v.row.may_be_confirmed or v.kind == "environment" for v in verdicts)
        if pairs is None or not self._doubt.by_clock or not is_slower:
            return verdicts
        with contextlib.suppress(SourceFailed):
            take_turns([pairs], LOOKS[0])
        if pairs.alone or pairs.failed:
            return verdicts
        total = ratios(pairs.references, pairs.launches)
        code = ratios(source.references, source.launches) or dict.fromkeys(total, 1.0)
        changes = version_changes(pairs.references[0].software, pairs.launches[0].software)
        return split_change(verdicts, code=code, total=total, software=", ".join(changes) or "software")

    def confirmed(self, source: Source, verdicts: Sequence[Finding], here: str) -> CaseResult:
        """The case with what decided it; ``here`` is the commit that is checked out."""
        result = replace(self._doubt.result, verdicts=list(verdicts))
        if self._why_not:
            return result
        return replace(
            result,
            confirmation=Confirmation(
                revision=str(self._doubt.variant),
                here=here,
                took_s=self.took_s,
                launches=list(source.launches[: len(source.references) or None]),
                references=list(source.references),
                controls=list(source.controls),
            ),
        )


class _Exchanged(Interleaved):
    """What is red, in other process trees, paths exchanged."""

    def __init__(
        self,
        first: InDoubt,
        looks: Sequence[int],
        budget: Allowance,
        *,
        verdicts: list[Finding],
        red: Collection[str],
        each_s: float,
        reserved_s: float,
    ) -> None:
        super().__init__(first.request, looks, budget, budget)
        self._in_turns = first.in_turns
        self._verdicts = verdicts
        self._red = red
        self._each_s = each_s
        self._reserved_s = reserved_s

    def may_begin(self, source: Source, look: int) -> bool:
        return self._each_s * (look - len(source)) + self._reserved_s <= self._budget.left_s

    def judge(self, source: Source) -> list[Finding]:
        found = {} if source.alone else self._in_turns(source)
        return seen_again(self._verdicts, {key: found[key] for key in self._red if key in found})

    def seen(self, source: Source) -> list[Finding]:
        findings = self.decide(source)
        has_ended = any(finding.is_open for finding in findings) and len(source) < self._looks[-1]
        if not findings or has_ended or source.failed or source.alone:
            return self._verdicts
        return [replace(finding, is_open=False) for finding in findings]


def in_time(request: LaunchRequest, launched: Sequence[float]) -> LaunchRequest:
    """A request whose launches end in a bounded time, whatever another revision does in them."""
    return replace(request, timeout_s=min(request.timeout_s, _SLOWER * max(launched, default=0.0) + _GRACE_S))
