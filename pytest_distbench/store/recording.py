"""Which commits recorded a baseline: those that changed the numbers in its file, which git knows."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_distbench import git
from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.store.baselines import BASELINE_FILES

_MOST_COMMITS = 50
_TIMEOUT_S = 60.0


class NotRecorded(DistbenchError):
    """Nobody knows which commit recorded a baseline; the text says why, and what to do."""


class Recording(NamedTuple):
    """A commit whose tree is what was measured for a baseline, and what it recorded."""

    commit: str
    entry: BaselineEntry


def recordings(path: Path, root: Path) -> Iterator[Recording]:
    """The recordings of the baseline in a file, the last one first; at least one.

    What was set by hand (tolerances, bounds, expected regressions, single numbers) is no recording, nor is a file that
    was moved or that nobody can read. A merge counts as its parents do.

    Args:
        path: the file of the baseline.
        root: the working tree that the tests are of.

    Raises:
        NotRecorded: the file is not committed, or not of this repository; or the clone does not reach so far.
    """
    top = _git(path.parent, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root:
        raise NotRecorded("its baseline is not in the repository of the tests")
    name = path.resolve().relative_to(root).as_posix()
    if _git(root, "status", "--porcelain", "--ignored", "--", name):
        raise NotRecorded(f"its baseline is not committed: git add {name}, and commit it")
    ends = _ends_of_clone(root)
    found: Recording | None = None
    for older in _versions(root, name):
        if found is not None and _are_measured_anew(found.entry, older.entry):
            yield _known(found, ends)
        found = older
    if found is None:
        raise NotRecorded(f"no commit has its baseline {name}")
    yield _known(found, ends)


def _known(recording: Recording, ends: set[str]) -> Recording:
    """It, unless a shallow clone ends there."""
    if recording.commit in ends:
        raise NotRecorded(
            "this is a shallow clone, which does not reach the commit that recorded its baseline: git fetch "
            "--deepen=100, or in GitHub Actions fetch-depth: 0 for actions/checkout"
        )
    return recording


def _versions(root: Path, name: str) -> Iterator[Recording]:
    """What commits have made of a file, the last one first, through its renames; without what nobody can read."""
    at = "HEAD"
    while commits := _git(root, "log", f"--max-count={_MOST_COMMITS}", "--format=%H", at, "--", name).split():
        readable = [(commit, entry) for commit in commits if (entry := _entry(root, commit, name)) is not None]
        yield from itertools.starmap(Recording, readable)
        at, name = f"{commits[-1]}^", _name_before(root, commits[-1], name, readable[-1][1] if readable else None)
        if not name:
            return


def _entry(root: Path, commit: str, name: str) -> BaselineEntry | None:
    try:
        return BASELINE_FILES.parse(_git(root, "show", f"{commit}:{name}").encode(), root / name).entry
    except StoredFileError:
        return None


def _name_before(root: Path, commit: str, name: str, entry: BaselineEntry | None) -> str:
    """What a file was called before a commit that renamed it; empty where none did.

    Git knows it by its lines; a file whose lines were laid out anew is known by its numbers.
    """
    of = ("diff-tree", "-r", "-z", "--no-commit-id")
    renamed = _git(root, *of, "--find-renames", "--diff-filter=R", "--name-status", commit).split("\0")
    deleted = _git(root, *of, "--no-renames", "--diff-filter=D", "--name-only", commit).split("\0")
    by_lines = [old for old, new in zip(renamed[1::3], renamed[2::3], strict=False) if new == name]
    by_numbers = (
        old
        for old in deleted
        if entry is not None
        and old.endswith(".json")
        and (before := _entry(root, f"{commit}^", old)) is not None
        and entry.metrics.keys() == before.metrics.keys()
        and not _are_measured_anew(entry, before)
    )
    return next(itertools.chain(by_lines, by_numbers), "")


def _are_measured_anew(new: BaselineEntry, old: BaselineEntry) -> bool:
    """Whether numbers are of other launches: one digit that was edited makes no others of them."""
    return any(key not in old.metrics or _differ(m, old.metrics[key]) for key, m in new.metrics.items())


def _differ(new: BaselineMetric, old: BaselineMetric) -> bool:
    """Whether more than a third of the numbers of a metric are others: on a quiet machine many repeat."""
    now, then = ([*m.launches, *m.minimum, *m.p95] for m in (new, old))
    return len(now) != len(then) or 3 * sum(a != b for a, b in zip(now, then, strict=True)) > len(now)


def _ends_of_clone(root: Path) -> set[str]:
    """The commits at which a shallow clone ends: each seems to have made every file that it has."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "true":
        return set()
    return set((root / _git(root, "rev-parse", "--git-path", "shallow")).read_text().split())


def _git(folder: Path, *arguments: str) -> str:
    """Its output, empty where it fails."""
    try:
        done = git.run(folder, *arguments, timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
