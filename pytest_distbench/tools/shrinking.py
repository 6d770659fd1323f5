"""pytest's side of ``distbench shrink``, loaded by ``-p``: the first red case is launched with parts of a diff.

The test itself runs once, from the working tree, and gives all launches the same parameters. So its hunks are no
candidates: those of files that pytest collects, of conftest.py, of the ini file and of baselines. They stay as in the
working tree on both sides, and a test that the revision does not have yet can be shrunk too.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_distbench.errors import DistbenchError, LauncherError
from pytest_distbench.judging.outcome import conclude
from pytest_distbench.plugin.fixtures import MADE, is_ours, session_for, settings_of
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.report import escape
from pytest_distbench.run.confirm import in_time
from pytest_distbench.run.session import Session
from pytest_distbench.tools.hunks import Hunk, Tree, smallest
from pytest_distbench.tools.shrink import PATCH, TROUBLE
from pytest_distbench.units import about, counted

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


class _RedCase:
    """A case whose exact ``metrics`` fail in the working tree and not at the baseline commit."""

    def __init__(self, session: Session, run: Run, tree: Tree, tests: Sequence[Hunk], code: Sequence[Hunk]) -> None:
        assert run.judged is not None
        self._launching = session.launching
        self._source = run.source
        self._comparison = session.comparison(run.request)
        self._launched = run.request.launched
        self._tree, self._tests, self._code = tree, tests, code
        self._name, self._headline = run.request.nodeid, conclude(run.judged, session.settings.policy).headline
        self._launches = self._unresolved = 0
        self._why_unresolved = ""
        self.metrics = self._failing(run.source.launches[0]) - self._failing(run.source.others[0])

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
        if not self._is_red(self._code):
            raise DistbenchError(
                f"{self._name} is red in the working tree, but not in {other} with all hunks"
                f"{self._why_unresolved and f' ({self._why_unresolved})'}: does it depend on what git ignores, or on a "
                "submodule? distbench_against_link in the ini file links what git ignores"
            )
        found = smallest(self._code, self._is_red)
        said = f"{len(found)} of {count} {'is' if len(found) == 1 else 'are'} enough"
        if others := [hunk for hunk in self._code if hunk not in found]:
            is_red = self._is_red(others)
            said += f", and the others are {'red too' if is_red else 'unresolved' if self._why_unresolved else 'green'}"
        self._tree.hold(found)
        seconds = time.monotonic() - began_at
        _print(f"{said}: {counted(self._launches, 'launch')} in {about(seconds)}, {self._unresolved} unresolved")
        return self._tree.patch()

    def _failing(self, launch: LaunchRecord) -> set[str]:
        """Names of the exact metrics of a launch that fail, compared with the first launch of the baseline commit."""
        pair = launch, self._source.others[0]
        ours, theirs = ({m.key for m in record.measurements if m.is_noisy} for record in pair)
        kept = ([m for m in record.measurements if m.key not in ours & theirs] for record in pair)
        source = copy.copy(self._source)
        source.launches, source.others = ([replace(r, measurements=m)] for r, m in zip(pair, kept, strict=True))
        return {v.metric for v in self._comparison.judge(source) if v.is_failure and v.is_exact}

    def _is_red(self, hunks: Sequence[Hunk]) -> bool:
        """Whether one of the metrics fails with these hunks; False if they cannot be applied or launched."""
        variant = self._launching.compared_with
        assert variant is not None
        assert self._launched is not None
        bounded = in_time(self._launched, [launch.wall_s for launch in self._source.launches])
        self._why_unresolved = ""
        try:
            self._tree.hold([*self._tests, *hunks])
        except LauncherError as error:
            self._why_unresolved = str(error)
        else:
            record = self._launching.launch_other(variant, bounded, 0)
            self._launches += 1
            if record.outcome != "passed":
                reason = record.reason.partition("\n")[0].removeprefix(f"in {variant}: ")
                self._why_unresolved = reason or record.outcome
            if record.outcome == "failed":
                self._launching.forget(record)
        self._unresolved += bool(self._why_unresolved)
        is_red = not self._why_unresolved and bool(self._failing(record) & self.metrics)
        known = f"unresolved: {self._why_unresolved}" if self._why_unresolved else "red" if is_red else "green"
        _print(f"  {counted(len(hunks), 'hunk')}: {known[:_LONGEST]}")
        return is_red
