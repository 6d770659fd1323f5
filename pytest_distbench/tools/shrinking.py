"""pytest's side of ``distbench shrink``, loaded by ``-p``: the first red case is launched with parts of a diff.

The test itself runs once, from the working tree, and gives all launches the same parameters. So its hunks are no
candidates: those of files that pytest collects, of conftest.py, of the ini file and of baselines. They stay as in the
working tree on both sides, and a test that the revision does not have yet can be shrunk too.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_distbench.errors import DistbenchError, LauncherError
from pytest_distbench.judging.outcome import conclude
from pytest_distbench.judging.thresholds import LAST_LOOK, fast_value
from pytest_distbench.plugin.fixtures import MADE, is_ours, session_for, settings_of
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.kinds import METRIC_KINDS, MetricKind
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_S, Sample
from pytest_distbench.records.places import CasePlaces
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.report import escape
from pytest_distbench.run.against import Variant
from pytest_distbench.run.confirm import in_time
from pytest_distbench.run.session import Session
from pytest_distbench.tools.hunks import Hunk, Tree, smallest
from pytest_distbench.tools.shares import ENOUGH, Shares
from pytest_distbench.tools.shrink import PATCH, TROUBLE
from pytest_distbench.units import about, counted, format_percent

_LONGEST = 110  # of a line that says what is with some hunks


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("distbench shrink launches one after the other: add -n0 to what pytest gets")
    config.pluginmanager.register(Shrinking(config))


def _print(line: str) -> None:
    print(escape(line), file=sys.stderr, flush=True)


class Shrinking:
    """Prepares the worktree of the baseline commit before the first test, and shrinks the diff at the first red one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._item: pytest.Item | None = None
        self._trees: dict[int, tuple[Tree, Sequence[Hunk], Sequence[Hunk]]] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._item = item if is_ours(item) else None
        if self._item is None or id(session := session_for(item)) in self._trees:
            return
        session.launching.on_wait = self._print_uncaptured  # what pytest prints is not seen
        variant = session.launching.compared_with
        assert variant is not None
        assert variant.revision is not None
        try:
            folder = session.launching.other_side(variant).tree
            assert folder is not None
            tree = Tree(folder, variant.revision.root)
            hunks = tree.hunks()
            tests = [hunk for hunk in hunks if any(self._is_of_tests(variant.revision.root / n) for n in hunk.names)]
            code = [hunk for hunk in hunks if hunk not in tests]
            if not code:
                what = "nothing but tests differs" if tests else "nothing that git tracks differs, but for submodules,"
                self._stop(f"{what} from {variant.revision}: there is no hunk to find")
            tree.hold(tests)
        except DistbenchError as error:
            self._stop(str(error))
        self._trees[id(session)] = tree, tests, code

    def pytest_runtest_logfinish(self) -> None:
        """Shrink in this hook, because pytest captures nothing at this moment."""
        if self._item is None or (made := self._item.stash.get(MADE, None)) is None:
            return
        session = session_for(self._item)
        for run in made.path.runs:
            if run.judged is None or not run.source.others:
                continue
            red = _RedCase(session, run, *self._trees[id(session)])
            if not red.metrics:
                continue
            try:
                with session.alone(run.request.case.world_size, takes_host=run.source.takes_host):
                    patch = red.shrink()
            except DistbenchError as error:
                self._stop(str(error))
            self._file(PATCH).write_bytes(patch)
            self._item.session.shouldfail = "shrink has found its patch"
            return

    def _print_uncaptured(self, line: str) -> None:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        assert capture is not None
        with capture.global_and_fixture_disabled():
            _print(line)

    def _is_of_tests(self, path: Path) -> bool:
        assert self._item is not None
        patterns = ["conftest.py", *self._config.getini("python_files")]
        return (
            any(map(path.match, patterns))
            or path == self._config.inipath
            or path.is_relative_to(settings_of(self._config).baselines)
            or any(path == item.path for item in self._item.session.items)
        )

    def _file(self, name: str) -> Path:
        record = settings_of(self._config).json
        assert record is not None
        return record.with_name(name)

    def _stop(self, why: str) -> NoReturn:
        self._file(TROUBLE).write_text(why)
        pytest.exit(why, returncode=pytest.ExitCode.TESTS_FAILED)


_Measure = Callable[[Sample], float | None]


def _cpu_s(sample: Sample) -> float | None:
    return sample.companions.get(CPU_S)


class _Unresolved(DistbenchError):
    """Nothing is known of some hunks: they could not be applied or launched, or the noise was too large."""


class _RedCase:
    """A case that A/B compared with the baseline commit, and what fails: exact metrics, or a timing or memory.

    Timings and memory are tried by pairs of the candidate and the baseline commit with some hunks. This detects as much
    as pairs of the baseline commit with and without the hunks, which need a second worktree.
    """

    def __init__(self, session: Session, run: Run, tree: Tree, tests: Sequence[Hunk], code: Sequence[Hunk]) -> None:
        assert run.judged is not None
        self._launching = session.launching
        self._source = run.source
        self._comparison = session.comparison(run.request)
        self._launched = run.request.launched
        self._tree, self._tests, self._code = tree, tests, code
        self._name, self._headline = run.request.nodeid, conclude(run.judged, session.settings.policy).headline
        self._places: CasePlaces | None = None
        self._launches = self._unresolved = 0
        self._why_unresolved, self._enough = "", ENOUGH
        self.metrics = self._failing(run.source.launches[0]) - self._failing(run.source.others[0])
        self._shares: Shares | None = None
        self._share_of: dict[tuple[Hunk, ...], float] = {}
        self._measure: _Measure = fast_value
        worse = [v for v in run.judged.verdicts if v.kind == "regressed" and not v.is_exact and v.ratio]
        if not self.metrics and worse:
            worst = max(worse, key=lambda v: (METRIC_KINDS[v.better].is_memory, abs(math.log(v.ratio or 1.0))))
            self.metrics, kind = {worst.metric}, METRIC_KINDS[worst.better]
            self._places = run.judged.memory_places if kind.is_memory else run.judged.places
            of_memory = (lambda m: max(1.0, sum(m.values) if worst.statistic == "one rank" else m.value or 0.0),)
            self._take_clearest(kind, of_memory if kind.is_memory else (fast_value, _cpu_s))

    def _take_clearest(self, kind: MetricKind, measures: Sequence[_Measure]) -> None:
        """Take the measure that the machine disturbs least: CPU time, if it grew as much as the metric."""
        for measure in measures:
            both = zip(self._source.launches, self._source.others, strict=True)
            if len(pairs := [pair for records in both if (pair := self._values(measure, *records))]) > 1:
                shares = Shares(1 if measure is _cpu_s else kind.sign, pairs, fewest=1 if kind.is_memory else 2)
                if self._shares is None or (
                    shares.change > ENOUGH * self._shares.change and shares.clarity > self._shares.clarity
                ):
                    self._shares, self._measure = shares, measure
        if self._shares is None:
            self.metrics = set()

    def shrink(self) -> bytes:
        """Return the patch of the fewest hunks with which one of the metrics still fails.

        Raises:
            DistbenchError: the case cannot be launched with some of the hunks, or is not red with all of them.
        """
        if self._launched is None:
            raise DistbenchError(
                f"{self._name}: distbench.judge computes {', '.join(self.metrics)} from several runs, and shrink "
                "repeats one; next: git bisect run distbench verdict --exact"
            )
        began_at, other, count = time.monotonic(), self._launching.compared_with, counted(len(self._code), "hunk")
        of_tests = f", and in {len(self._tests)} of tests, which stay" if self._tests else ""
        _print(f"{other} and the working tree differ in {count}{of_tests}")
        _print(f"red: {self._name}: {self._headline}")
        if self._shares is not None and self._measure is _cpu_s:
            _print("tried by the CPU time of an iteration, which grew as much and scatters less")
        order, named = self._in_order()
        tried = functools.cache(self._try)

        def is_red(hunks: Sequence[Hunk]) -> bool:
            return tried(tuple(hunks)) == "red"

        first = order[: named or None]
        if not is_red(first) and not is_red(order):
            why = self._why_unresolved and f" ({self._why_unresolved})"
            advice = (
                "does it depend on what git ignores, or on a submodule? distbench_against_link in the ini file links "
                "what git ignores"
            )
            if "inconclusive" in why:
                advice = "its pairs scatter too much: shrink it on a quieter machine"
            raise DistbenchError(
                f"{self._name} is red in the working tree, but not in {other} with all hunks{why}: {advice}"
            )
        share = self._share_of.get(first, 0.0) if named else 0.0
        kept = first if 1 - ENOUGH < share < ENOUGH else ()
        if kept:  # the others have the rest, or none of it
            self._enough = (1 + share) / 2
        while 0 < named < len(order) and not is_red(order[:named]):
            named *= 2
        found = (*kept, *smallest(order[len(kept) : named or None], lambda more: is_red((*kept, *more))))
        self._enough = ENOUGH
        said = f"{len(found)} of {count} {'is' if len(found) == 1 else 'are'} enough"
        if others := tuple(hunk for hunk in order if hunk not in found):
            said += f", and the others are {tried(others).replace('red', 'red too')}"
        self._tree.hold(self._sorted(found))
        seconds = time.monotonic() - began_at
        _print(f"{said}: {counted(self._launches, 'launch')} in {about(seconds)}, {self._unresolved} unresolved")
        return self._tree.patch()

    def _in_order(self) -> tuple[tuple[Hunk, ...], int]:
        """Order the hunks by the lines that the failure names; and 1 if it names any, else 0."""
        if self._shares is None or self._places is None:
            return tuple(self._code), 0
        _print(f"where: {self._places.sentence or f'not known: {self._places.why_not}'}")
        lines = [line for row in self._places.rows for line in (row.changed_at, row.place[:2]) if line[0]]

        def near(hunk: Hunk) -> tuple[bool, float, float]:
            found = [(at, hunk.distance(*line)) for at, line in enumerate(lines)]
            known = [(distance > 0, at, distance) for at, distance in found if distance < math.inf]
            return min(known, default=(True, math.inf, math.inf))

        order = tuple(sorted(self._code, key=near))
        return order, int(near(order[0])[1] < math.inf)

    def _failing(self, launch: LaunchRecord) -> set[str]:
        """Names of the exact metrics of a launch that fail, compared with the first launch of the baseline commit."""
        pair = launch, self._source.others[0]
        ours, theirs = ({m.key for m in record.measurements if m.is_noisy} for record in pair)
        kept = ([m for m in record.measurements if m.key not in ours & theirs] for record in pair)
        source = copy.copy(self._source)
        source.launches, source.others = ([replace(r, measurements=m)] for r, m in zip(pair, kept, strict=True))
        return {v.metric for v in self._comparison.judge(source) if v.is_failure and v.is_exact}

    def _values(self, measure: _Measure, *records: LaunchRecord) -> tuple[float, float] | None:
        """What scatters, of the candidate and of the other side, or None if one of them lacks it."""
        values = [measure(m) for record in records for m in record.measurements if m.key in self.metrics]
        here, there = values if len(values) == len(records) else (None, None)
        return (here, there) if here and there and min(here, there) > 0 else None

    def _sorted(self, hunks: Sequence[Hunk]) -> list[Hunk]:
        return sorted(hunks, key=self._code.index)  # as in the diff

    def _try(self, hunks: tuple[Hunk, ...]) -> str:
        """Say whether one of the metrics fails with these hunks: red, green or unresolved."""
        self._why_unresolved = ""
        try:
            self._tree.hold([*self._tests, *self._sorted(hunks)])
            is_red, known = self._fails() if self._shares is None else self._have_enough(hunks, self._shares)
            found = "red" if is_red else "green"
        except (LauncherError, _Unresolved) as error:
            self._why_unresolved, found, known = str(error), "unresolved", f": {error}"
            self._unresolved += 1
        where = f" ({hunks[0].names[1]}:{hunks[0].now})" if len(hunks) == 1 else ""
        _print(f"  {counted(len(hunks), 'hunk')}{where}: {f'{found}{known}'[:_LONGEST]}")
        return found

    def _fails(self) -> tuple[bool, str]:
        """Whether an exact metric fails in a launch of the baseline commit with hunks."""
        [launch] = self._passed(self._launching.launch_other(*self._asked(), 0))
        return bool(self._failing(launch) & self.metrics), ""

    def _have_enough(self, hunks: tuple[Hunk, ...], shares: Shares) -> tuple[bool, str]:
        """Whether hunks have enough of a change that scatters, by as many pairs as decide it."""
        seen, are_enough = shares.begin(), None
        while are_enough is None and len(seen) < LAST_LOOK:
            pair = self._launching.launch_pair(*self._asked(), len(seen), only=[*self.metrics])
            if (values := self._values(self._measure, *self._passed(*pair))) is None:
                raise _Unresolved(f"a launch measured no {', '.join(self.metrics)}")
            seen.append(shares.missing(*values))
            are_enough = shares.are_enough(seen, self._enough)
        self._share_of[hunks] = shares.share(seen)
        text = f"{format_percent(shares.share(seen))} of the change, {counted(len(seen), 'pair')}"
        if are_enough is None:
            raise _Unresolved(f"inconclusive: {text}")
        return are_enough, f": {text}"

    def _asked(self) -> tuple[Variant, LaunchRequest]:
        variant = self._launching.compared_with
        assert variant is not None
        assert self._launched is not None
        return variant, in_time(self._launched, [launch.wall_s for launch in self._source.launches])

    def _passed(self, *records: LaunchRecord | None) -> list[LaunchRecord]:
        """Return launches that all passed.

        Raises:
            _Unresolved: one did not.
        """
        known = [record for record in records if record is not None]
        self._launches += len(known)
        failed = [record for record in known if record.outcome != "passed"]
        for record in failed:
            if record.outcome == "failed":
                self._launching.forget(record)
        for record in failed:
            reason = record.reason.partition("\n")[0].removeprefix(f"in {self._launching.compared_with}: ")
            raise _Unresolved(reason or record.outcome)
        return known
