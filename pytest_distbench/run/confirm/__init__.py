"""Confirmation: a suspicious stored comparison is measured again, interleaved with its baseline commit.

Other rooms import this module alone.

1. :meth:`Confirmer.screen` looks for evidence of a slowdown while a case is compared with its baseline.
2. :meth:`Confirmer.suspect` decides, after that comparison, whether the case needs confirmation.
3. ``plugin/confirm.py`` runs the tests of the suspects again at the end, as far as the budget goes (:class:`Rerun`).
4. :class:`Confirmation` interleaves their launches and decides, by the rules in ``rule.py``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.screening import SCREENING_LAUNCHES, Screening, is_timing, screen
from pytest_distbench.judging.terms import accepted_changes
from pytest_distbench.machine.hardware import find_interpreter
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.against import Variant, find_links
from pytest_distbench.run.confirm.case import Confirmation, Rerun, Suspect
from pytest_distbench.run.confirm.evaluated import Evaluation
from pytest_distbench.run.confirm.interleaved import START_S, Allowance, Interleaved, for_places, in_time
from pytest_distbench.run.confirm.rule import are_asked_about, can_be_confirmed, judge_interleaved
from pytest_distbench.run.directory import Revision
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.sources import Source
from pytest_distbench.store.baselines import NotRecorded, read_file, recordings

__all__ = [
    "SCREENING_LAUNCHES",
    "START_S",
    "Allowance",
    "Confirmation",
    "Confirmer",
    "Evaluation",
    "Interleaved",
    "Rerun",
    "Suspect",
    "for_places",
    "in_time",
    "judge_interleaved",
]


class Confirmer:
    """Finds the suspicious cases of a run, and the baseline commit of each.

    Args:
        root: the root of the tests, in their repository.
        folder: the folder that paths on the command line are relative to.
    """

    def __init__(self, settings: Settings, root: Path, folder: Path) -> None:
        self._settings = settings
        self._baselines = settings.baselines
        self._root = root
        self._folder = folder
        self._known: dict[Path, tuple[Variant, BaselineEntry | None] | NotRecorded] = {}

    def screen(
        self, request: CaseRequest, source: Source, path: Path, baseline: BaselineEntry, *, comparisons: int
    ) -> Screening | None:
        """Evidence of a slowdown in the launches of a case, or None if it could not be confirmed."""
        try:
            self.recorder(path, source)
        except NotRecorded:
            return None
        return screen(request.terms, request.case, source.launches, baseline, comparisons=comparisons)

    def suspect(
        self,
        request: CaseRequest,
        source: Source,
        path: Path,
        result: CaseResult,
        baseline: BaselineEntry,
        *,
        comparisons: int,
        made_of: Sequence[str],
    ) -> Suspect | None:
        """A compared case with what needs confirmation, or None.

        Args:
            path: the file of the baseline.
            made_of: keys of the cases that its number is computed from.

        Raises:
            NotRecorded: it needs confirmation, which is not possible; the text says why.
        """
        judged = [v for v in result.verdicts if is_timing(v, v.unit) and v.is_judged]
        is_open = result.suspicion > 0.0 or any(v.row.may_be_confirmed or v.is_undecided for v in judged)
        timings = bool(judged) and (is_open or self._settings.confirm[0] == "always")
        if result.xfail_perf or not can_be_confirmed(result.verdicts):
            return None
        if not timings and not any(map(are_asked_about, result.verdicts)):
            return None
        variant, before = self.recorder(path, source)
        if variant.is_itself and not timings:
            return None  # there is no other code that could compute the digits
        return Suspect(
            result=result,
            verdicts=result.verdicts,
            launches=result.launches,
            baseline=baseline,
            before=before,
            tolerances=accepted_changes(request.terms, result.launches, baseline),
            comparisons=comparisons,
            are_timings=timings,
            variant=variant,
            made_of=made_of,
        )

    def recorder(self, path: Path, source: Source) -> tuple[Variant, BaselineEntry | None]:
        """The baseline commit that a case is interleaved with, and its own baseline if a later one is stored.

        Raises:
            NotRecorded: there is none, or the case cannot be interleaved.
        """
        found = self.find(path)
        if source.why_not_interleaved and not (found[0].is_itself and source.may_be_repeated):
            raise NotRecorded(source.why_not_interleaved)
        return found

    def find(self, path: Path) -> tuple[Variant, BaselineEntry | None]:
        """The baseline commit of a file, and its own baseline if a later one is stored, else None.

        Raises:
            NotRecorded: it is unknown; the text says why.
        """
        if path not in self._known:
            try:
                known = recordings(path, self._top)
                (last, _, of_last), before = next(known), None
                # a commit that changed code too cannot judge itself: the baseline commit is the one before
                if self._is_here(last, path) and not self._is_here(f"{last}^", path, until=last):
                    before = next(known, None)
                commit, _, file = before or (last, {}, of_last)
                own = file.entry if before is not None and file is not None else None
                self._known[path] = self._variant(commit, path, was="" if file is None else file.test), own
            except NotRecorded as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, NotRecorded):
            raise found
        return found

    def of_its_time(self, variant: Variant) -> Variant | None:
        """The baseline commit under its own software, ``--distbench-against-python``; None without that option."""
        given = self._settings.baseline_python
        return dataclasses.replace(variant, interpreter=find_interpreter(given, self._folder)) if given else None

    @functools.cached_property
    def here(self) -> str:
        """The commit that is checked out, followed by ``-dirty`` if tracked files differ."""
        return git.describe_commit(self._root)

    def _variant(self, commit: str, path: Path, *, was: str) -> Variant:
        tests = (read_file(path).test, was) if was else ()  # now and then
        places = [(self._root / test.partition("::")[0]).resolve() for test in tests]
        renamed = ((places[0], places[1]), (places[0].parent, places[1].parent)) if len({*places}) > 1 else ()
        try:
            return Variant(
                renamed=renamed,
                revision=Revision("", commit, self._top),
                links=find_links(self._settings.against_link, folder=self._root, root=self._top),
                interpreter=None,
                is_itself=self._is_here(commit, path),
            )
        except ConfigurationError as error:
            raise NotRecorded(str(error)) from None

    def _is_here(self, commit: str, path: Path, *, until: str = "") -> bool:
        """Whether all tracked files but baselines equal those of a commit, here or in the later commit ``until``.

        An untracked Python file here counts as a difference: it may be imported.
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
