"""``distbench bisect``: the commit that moved a metric, found by measuring few of those between two."""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import math
import shlex
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from pytest_distbench import git
from pytest_distbench.commands.contract import Adder, NegativeError
from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError, Terminated
from pytest_distbench.judging import bisection, moved
from pytest_distbench.judging.bisection import EXACT_ODDS, Noise, Seen
from pytest_distbench.records.bisection import LAUNCH_FAILS, Bisection, Followed, Visit
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.texts.words import quantity
from pytest_distbench.run.history import Commit, History, find_history
from pytest_distbench.run.untracked import find_links
from pytest_distbench.run.visits import Measured, Visits, refuse
from pytest_distbench.run.worktree import Revision
from pytest_distbench.store.bisections import BISECTIONS, SCHEMA, place_of
from pytest_distbench.units import format_change

MOST_VISITS = 20
TIMEOUT_S = 1800.0
_ENDS_LAUNCHES = 2
"""Of GOOD and of BAD: what differs between launches of the same code is not exact."""
_MOST_SUSPECTS = 10


def add(add_parser: Adder) -> None:
    """Add the command. What its parser does not know is for pytest."""
    parser = add_parser(
        "bisect",
        help="which commit moved a metric? measures few of those between two revisions",
        usage="%(prog)s GOOD BAD [--metric NAME] [--most-visits N] [--timeout S] [--link PATH] [--take PATH] "
        "[--restart] -- TEST [PYTEST OPTION ...]",
        allow_abbrev=False,
    )
    parser.add_argument("good", metavar="GOOD", help="a revision before the change")
    parser.add_argument("bad", metavar="BAD", help="a later one, after it")
    parser.add_argument(
        "--metric", metavar="NAME", default="", help="that is followed (default: an exact one that differs, else the "
        "clock that moved most clearly)",
    )  # fmt: skip
    parser.add_argument(
        "--most-visits", metavar="N", type=_number, default=MOST_VISITS,
        help=f"commits that are measured at most, besides GOOD and BAD (default: {MOST_VISITS})",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="S", type=_number, default=TIMEOUT_S,
        help=f"seconds that one run of pytest may take (default: {TIMEOUT_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--link", metavar="PATH", action="append", default=[],
        help="what git ignores and the test needs, such as data/: linked from the working tree into each commit",
    )  # fmt: skip
    parser.add_argument(
        "--take", metavar="PATH", action="append", default=[],
        help="a file of the working tree to lay over each commit: a test that is newer than the commits",
    )  # fmt: skip
    parser.add_argument("--restart", action="store_true", help="forget what an earlier search of these words measured")
    parser.set_defaults(command=bisect, pytest_arguments=[])


def bisect(options: argparse.Namespace) -> Iterator[str]:
    """Measure GOOD and BAD, and then commits between them; each line says what is known."""
    test, *rest = [word for word in options.pytest_arguments if word != "--"] or [""]
    _check_test(test)
    refuse(rest)
    folder = Path.cwd()
    history = find_history(options.good, options.bad, folder)
    root = history.bad.root
    links = find_links(options.link, folder=folder, root=root)
    taken = [_taken(path, folder, root) for path in options.take]
    yield from _introduce(history)
    contents = [hashlib.sha256((root / path).read_bytes()).hexdigest() for path in taken]
    asked = [test, *rest, options.metric, *options.link, *options.take, *contents, str(folder)]
    place = place_of(_git_folder(root), history.good.commit, history.bad.commit, asked)
    if options.restart:
        place.unlink(missing_ok=True)
    visits = Visits(root, folder, rest, timeout_s=options.timeout, links=links, taken=taken)
    with contextlib.closing(visits), _sigterm_interrupts():
        state: Bisection | None = None
        if place.exists():
            try:
                state = BISECTIONS.read(place)
                yield f"goes on after {len(state.visits)} visits of an earlier run (--restart forgets them)"
            except StoredFileError as error:
                aside = place.with_suffix(".kept")
                place.replace(aside)
                yield f"begins anew, the state of an earlier run is of no use and lies in {aside}: {error.problem}"
        try:
            if state is None:
                ends = _Ends(history, visits, test, options.metric)
                yield from ends.measure()
                state = Bisection(
                    schema=SCHEMA, good=history.good.commit, bad=history.bad.commit, asked=asked, followed=ends.found
                )
                BISECTIONS.write(place, state)
            search = _Search(history, state, visits)
            yield f"follows {_metric_name(state.followed)} of {state.followed.bad.nodeid}: {state.followed.told}"
            while len(search.state.visits) < options.most_visits and (next_one := search.next()) is not None:
                line = search.visit(next_one)
                BISECTIONS.write(place, search.state)
                yield line
        except KeyboardInterrupt:
            yield "interrupted: the same command goes on from here"
            raise
    yield ""
    yield from search.conclude([test, *rest])
    if not search.has_found:
        raise NegativeError


class _Ends:
    """GOOD and BAD: whether anything differs between them, and which metric is followed."""

    def __init__(self, history: History, visits: Visits, test: str, metric: str) -> None:
        self._history, self._visits, self._test, self._metric = history, visits, test, metric
        self._told: list[str] = []

    @property
    def found(self) -> Followed:
        """What is followed."""
        assert self._found is not None
        return self._found

    def measure(self) -> Iterator[str]:
        """Look for what is exact first, by launches of each end alone, and then for clocks, in turns."""
        good, bad = self._history.good, self._history.bad
        self._found: Followed | None = None
        yield f"GOOD and BAD: {_ENDS_LAUNCHES} launches each ..."
        then, now = (self._take(self._visits.alone(end, self._test, launches=_ENDS_LAUNCHES), end) for end in (good, bad))
        before = {(r.nodeid, r.case.key): r for r in then}
        if failed := next((r for r in then if moved.failure(r.launches)), None):
            raise DistbenchError(f"bisect: the launch fails at GOOD ({good}): {failed.launches[-1].reason}")
        both = [(before[key], r) for r in now if (key := (r.nodeid, r.case.key)) in before]
        if not both:
            names = " and ".join(", ".join(r.nodeid for r in side) for side in (then, now))
            raise DistbenchError(f"bisect: GOOD and BAD measure different cases: {names}")
        exact = list(self._exact(both))
        if exact:
            yield from self._choose(exact)
            return
        yield "nothing exact differs; BAD against GOOD, in turns ..."
        paired = self._take(self._visits.in_turns(bad, self._test, good, pairs=None), bad)
        clocks = [
            Followed(metric=v.metric, told=_change(v), good=r, bad=r, at_bad=moved.log_ratios(r, v.metric))
            for r in paired
            for v in moved.clock_moves(r)
            if self._wants(v.metric)
        ]
        if not clocks:
            yield from self._nothing(paired)
            raise NegativeError
        yield from self._choose(clocks)

    def _exact(self, both: Sequence[tuple[CaseResult, CaseResult]]) -> Iterator[Followed]:
        for good, bad in both:
            if failed := moved.failure(bad.launches):
                if self._wants(LAUNCH_FAILS):
                    yield Followed(metric=LAUNCH_FAILS, told=f"fails at BAD ({failed})", good=good, bad=bad)
                continue
            for verdict in moved.exact_moves(good, bad):
                if self._wants(verdict.metric):
                    yield Followed(metric=verdict.metric, told=moved.tell(verdict), good=good, bad=bad)

    def _choose(self, found: Sequence[Followed]) -> Iterator[str]:
        self._found, *others = found
        if others:
            yield f"{len(others)} more differ{'s' * (len(others) == 1)}; --metric NAME follows another:"
            yield from (f"  {_metric_name(f)} of {f.bad.nodeid}: {f.told}" for f in others[:_MOST_SUSPECTS])

    def _nothing(self, results: Sequence[CaseResult]) -> Iterator[str]:
        """What was compared, and what would have been found."""
        wanted = f"{self._metric} does" if self._metric else "no metric does"
        yield f"GOOD and BAD do not differ as far as can be seen: {wanted}{' not' * bool(self._metric)}"
        for result in results:
            for verdict in (v for v in result.verdicts if v.is_judged and self._wants(v.metric)):
                finds = "" if verdict.detectable is None else f", would have found +{verdict.detectable:.0%}"
                yield f"  {verdict.metric}: {verdict.kind}, {_change(verdict)}{finds}"
            if moved.failure(result.launches):
                yield f"  {result.nodeid}: {result.launches[-1].reason}"

    def _wants(self, metric: str) -> bool:
        return not self._metric or self._metric in (metric, metric.partition("[")[0])

    @staticmethod
    def _take(measured: Measured, end: Revision) -> Sequence[CaseResult]:
        if measured.why_not:
            raise DistbenchError(f"bisect: {end} cannot be measured: {measured.why_not}")
        return measured.results


class _Search:
    """Visits of commits between GOOD and BAD, and what they say together."""

    def __init__(self, history: History, state: Bisection, visits: Visits) -> None:
        self.state = state
        self._history, self._visits = history, visits
        self._place = {commit.hash: number for number, commit in enumerate(history.commits, 1)}

    @property
    def _skipped(self) -> set[int]:
        return {self._place[v.commit] for v in self.state.visits if v.skipped}

    @property
    def _noise(self) -> Noise:
        return Noise.of([self.state.followed.at_bad, *(v.changes for v in self.state.visits)])

    def _seen_at(self, visit: Visit) -> Seen:
        followed = self.state.followed
        if followed.is_exact:
            odds = EXACT_ODDS if visit.has_moved else -EXACT_ODDS
        else:
            odds = bisection.clock_odds(visit.changes, followed.at_bad, self._noise)
        return Seen(self._place[visit.commit], odds)

    @property
    def _seen(self) -> list[Seen]:
        return [self._seen_at(visit) for visit in self.state.visits if not visit.skipped]

    @property
    def _chances(self) -> list[float]:
        return bisection.chances(len(self._history.commits), self._seen)

    @property
    def _suspects(self) -> list[bisection.Group]:
        return bisection.suspects(self._chances, self._skipped)

    @property
    def has_found(self) -> bool:
        """Whether it is one commit."""
        return [len(group.places) for group in self._suspects] == [1]

    def next(self) -> Commit | None:
        """The commit to visit; None where the search is over."""
        if len(self._suspects) == 1:
            return None
        place = bisection.next_place(self._chances, self._seen, self._skipped)
        return None if place is None else self._history.commits[place - 1]

    def visit(self, commit: Commit) -> str:
        """Measure a commit; the line that tells of it."""
        begun = time.monotonic()
        visit = self._measure(commit)
        visit = replace(visit, seconds=round(time.monotonic() - begun, 1))
        self.state = replace(self.state, visits=[*self.state.visits, visit])
        suspects = self._suspects
        left = sum(len(group.places) for group in suspects)
        number = f"{len(self.state.visits):>2}"
        more = "" if self.next() is None else f", about {bisection.visits_left(self._chances)} more visits"
        return f"{number}  {commit.short}  {self._told(visit)}  ({left} left{more})  {commit.subject}"

    def _measure(self, commit: Commit) -> Visit:
        followed = self.state.followed
        revision = Revision(commit.short, commit.hash, self._history.bad.root)
        test = _test_of(followed, self.state.asked[0])
        visit = functools.partial(Visit, commit=commit.hash, seconds=0.0)
        if followed.is_exact:
            measured = self._visits.alone(revision, test, launches=1)
        else:
            pairs = bisection.pairs_a_visit(followed.at_bad, self._noise)
            measured = self._visits.in_turns(revision, test, self._history.good, pairs=pairs)
        here = next((r for r in measured.results if r.case.key == followed.bad.case.key), None)
        if here is None:
            return visit(skipped=measured.why_not or "it measures other cases")
        if followed.is_exact:
            has_moved, told = moved.answer(followed.metric, followed.good, followed.bad, here)
            return visit(skipped=told) if has_moved is None else visit(has_moved=has_moved, told=told)
        if failed := moved.failure([*here.launches, *here.reference.launches]):
            return visit(skipped=f"the launch fails: {failed}: {here.launches[-1].reason}")
        changes = moved.log_ratios(here, followed.metric)
        return visit(changes=changes) if len(changes) > 1 else visit(skipped=f"it does not measure {followed.metric}")

    def _told(self, visit: Visit) -> str:
        if visit.skipped:
            return "skipped: " + visit.skipped.replace("\n", "\n      | ") + "\n     "
        seen = self._seen_at(visit)
        word = ("as BAD " if seen.log_odds > 0 else "as GOOD") if seen.is_clear else "unclear"
        if self.state.followed.is_exact:
            return f"{word}{visit.told and f': {visit.told}'}"
        return f"{word}  {_mean_text(visit.changes)}"

    def conclude(self, words: Sequence[str]) -> Iterator[str]:
        """The answer: a commit, or those that it may be."""
        visits, skipped = len(self.state.visits), len(self._skipped)
        how = f"{visits} visit{'s' * (visits != 1)}, {sum(v.seconds for v in self.state.visits):.0f} s"
        suspects = self._suspects
        places = sorted(place for group in suspects for place in group.places)
        chance = self._chances
        if not self.has_found:
            yield f"one of these {len(places)} commits ({how}; {skipped} could not be measured):"
            likely = sorted(places, key=lambda place: -chance[place - 1])[:_MOST_SUSPECTS]
            yield from (f"  {chance[p - 1]:>4.0%}  {_commit_text(self._history.commits[p - 1])}" for p in sorted(likely))
            if len(places) > len(likely):
                yield f"  and {len(places) - len(likely)} more, none of them likelier"
            if visits and len(suspects) > 1:
                yield "more visits may tell: the same command with a larger --most-visits goes on"
            return
        commit = self._history.commits[places[0] - 1]
        yield f"found in {how} ({suspects[0].chance:.1%} sure):"
        yield f"  {_commit_text(commit)}"
        yield f"  {self._evidence(places[0])}"
        if len(commit.parents) > 1:
            yield f"  a merge; in what it brings in: distbench bisect {commit.short}^1 {commit.short}^2 -- ..."
        yield f"look at it:  git show {commit.short}"
        test = shlex.join([_test_of(self.state.followed, words[0]), *words[1:]])
        yield f"measure it:  git switch --detach {commit.short} && pytest {test} --distbench-against HEAD~"

    def _evidence(self, found: int) -> str:
        """What was seen before the commit, and from it on."""
        followed = self.state.followed
        if followed.is_exact:
            told = next((v.told for v in self.state.visits if self._place[v.commit] == found), "") or followed.told
            return f"{_metric_name(followed)}: {told}"
        before = [c for v in self.state.visits if self._place[v.commit] < found for c in v.changes]
        after = [c for v in self.state.visits if self._place[v.commit] >= found for c in v.changes]
        told = f"{_metric_name(followed)}: {_mean_text([*after, *followed.at_bad])} from it on"
        return f"{told}, {_mean_text(before)} before" if before else told


def _introduce(history: History) -> Iterator[str]:
    number = len(history.commits)
    of = f"{number} commit{'s' * (number != 1)} from GOOD, {history.good}, to BAD, {history.bad}"
    merges = sum(len(commit.parents) > 1 for commit in history.commits)
    yield of + f"; {merges} are merges, each taken as one change" * bool(merges)
    if git.describe_commit(history.bad.root).endswith("-dirty"):
        yield "what is not committed is not looked at"


def _check_test(test: str) -> None:
    path = Path(test.partition("::")[0])
    if not test or test.startswith("-"):
        raise ConfigurationError("bisect: no test: distbench bisect GOOD BAD -- test_a.py::test_b [PYTEST OPTION ...]")
    if path.is_absolute() or path.suffix != ".py":
        raise ConfigurationError(
            f"bisect: {test!r}: wanted one test file, or a test in it such as test_a.py::test_b, from this folder"
        )


def _taken(given: str, folder: Path, root: Path) -> Path:
    path = Path(folder, given)
    if not path.is_file() or not path.resolve().is_relative_to(root):
        raise ConfigurationError(f"bisect: --take {given}: wanted a file in the working tree {root}")
    return path.resolve().relative_to(root)


def _test_of(followed: Followed, asked: str) -> str:
    """The one test that measures what is followed."""
    return f"{asked.partition('::')[0]}::{followed.bad.nodeid.partition('::')[2]}"


def _git_folder(root: Path) -> Path:
    found = git.run(root, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return Path(found.stdout.strip())


def _metric_name(followed: Followed) -> str:
    return "the launch" if followed.metric == LAUNCH_FAILS else followed.metric


def _change(verdict: Verdict) -> str:
    values = f"{quantity(verdict.baseline, verdict.unit)} -> {quantity(verdict.current, verdict.unit)}"
    return values if verdict.ratio is None else f"{format_change(verdict.ratio)} ({values})"


def _mean_text(changes: Sequence[float]) -> str:
    return f"{format_change(math.exp(statistics.fmean(changes)))} over {len(changes)} pairs"


def _commit_text(commit: Commit) -> str:
    return f"{commit.short}  {commit.date}  {commit.author}: {commit.subject}"


def _number(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal() or float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return float(text)


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Cancelled CI jobs get SIGTERM: it ends the search as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated("SIGTERM interrupted the search")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
