"""How stored baselines went: every recording that is in the log of the repository they lie in."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_distbench import git
from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.trend import History, Point, Trend
from pytest_distbench.store.baselines import BASELINE_FILES, BaselineFile
from pytest_distbench.store.revisions import GitObjects

_GONE = "0" * 40
"""The name of no content."""


class _Content(NamedTuple):
    commit: str
    at: str
    name: str
    path: str


def baseline_history(folder: Path, *, last: int) -> History:
    """The metrics of a store, a point for each commit that recorded it, of so many commits, the last ones.

    Raises:
        DistbenchError: the folder is in no repository, or no commit has changed it.
    """
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: give that of your baselines")
    try:
        options = ("--reverse", "--format=%H %cI", "--raw", "--no-abbrev", "--no-renames")
        log = git.run(folder, "log", f"--max-count={last}", *options, "--", ".")
    except OSError as error:
        raise DistbenchError(f"cannot run git: {error.strerror or error}; give a folder of run records") from error
    if log.returncode or not log.stdout:
        why = log.stderr.strip().removeprefix("fatal: ") or "no commit has changed it"
        raise DistbenchError(f"{folder}: {why}; --baselines reads the log of the repository that a store lies in")
    trends: dict[tuple[str, ...], Trend] = {}
    commits: dict[str, str] = {}
    problems: list[str] = []
    with contextlib.closing(GitObjects(folder)) as contents:
        for content in _contents(log.stdout):
            try:
                file = BASELINE_FILES.parse(contents.read(content.name, content.path), Path(content.path))
            except StoredFileError as error:
                problems.append(f"{content.commit[:10]}: {error}")
                continue
            commits[content.commit] = content.at
            _add(trends, file, content)
    times = list(commits.values()) or [""]
    found = [trends[key] for key in sorted(trends)]
    return History(records=len(commits), first=times[0], last=times[-1], trends=found, problems=problems)


def _contents(log: str) -> Iterator[_Content]:
    """Of a log with ``--raw``: the files that a commit has changed, below a line of the commit's own."""
    commit = at = ""
    for line in log.splitlines():
        facts, _, path = line.partition("\t")
        if not line.startswith(":"):
            commit, _, at = line.partition(" ") if line else (commit, "", at)
        elif (name := facts.split()[3]) != _GONE[: len(name)] and path.rstrip('"').endswith(".json"):
            yield _Content(commit, at, name, path)


def _add(trends: dict[tuple[str, ...], Trend], file: BaselineFile, content: _Content) -> None:
    """The values of a recording to the trends of their metrics. What was edited by hand has the values it had."""
    function = file.test.partition("::")[2] or file.test
    case = file.key.removesuffix(f".{file.entry.conditions.backend}.{file.entry.conditions.launcher}")
    for metric, stored in file.entry.metrics.items():
        values = [value for value in stored.launches if value is not None]
        if not values:
            continue
        point = Point(content.at, content.commit, float(statistics.median(values)))
        key = (file.platform, file.test, file.key, metric, stored.unit, stored.better)
        trend = trends.setdefault(
            key,
            Trend(
                platform=file.platform, test=file.test, case=file.key, title=f"{function}[{case}]", nodeid=file.test,
                metric=metric, unit=stored.unit, better=stored.better,
            ),
        )  # fmt: skip
        if not trend.points or trend.points[-1].value != point.value:
            trend.points.append(point)
