"""Searches for a commit, made up; and repositories in which one is to be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_distbench.records.bisection import Bisection, Commit, Followed, Visit
from support.repositories import git
from support.results import result, verdict

COMMITS = [
    Commit(hash=f"{number:040x}", parents=["0"], author="Ada", date="2026-01-02", subject=f"Commit {number}")
    for number in range(1, 9)
]
STEP = verdict("regressed", ratio=1.2, current=0.024, baseline=0.02)
CLOCK = Followed(metric="step", verdict=STEP, good=result(STEP), bad=result(STEP), at_bad=[0.18, 0.17, 0.19, 0.18])
CHANGED = verdict("changed", metric="fingerprint", ratio=None, better="exact", differences=["1 all_reduce was added"])
EXACT = Followed(metric="fingerprint", verdict=CHANGED, good=result(), bad=result(CHANGED))


def visited(number: int, **changes: Any) -> Visit:
    return Visit(commit=COMMITS[number - 1].hash, **{"seconds": 2.0, **changes})


def state(followed: Followed, *visits: Visit) -> Bisection:
    return Bisection(
        schema=1, good="0" * 40, bad=COMMITS[-1].hash, asked=["test_a.py"], followed=followed, visits=list(visits)
    )


def make_history(folder: Path, commits: Sequence[Mapping[str, str]]) -> None:
    """A repository of commits, each of which writes files; an empty text removes one."""
    git(folder, "init", "-q")
    for number, files in enumerate(commits):
        for name, text in {"number.txt": str(number), **files}.items():
            (folder / name).write_text(text) if text else (folder / name).unlink()
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"Commit {number}")
