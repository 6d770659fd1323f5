"""The commits between two revisions, of which one moved a metric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.bisection import Commit
from pytest_distbench.run.worktree import Revision, find_revision

_FORMAT = "%H%x1f%P%x1f%an%x1f%as%x1f%s"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What lies between GOOD, which is not among the commits, and BAD, which is the last of them."""

    good: Revision
    bad: Revision
    commits: tuple[Commit, ...]


def find_history(good_name: str, bad_name: str, inside: Path) -> History:
    """The commits that lead from GOOD to BAD by first parents: what a merge brought in counts as one change."""
    good, bad = (find_revision(name, inside, asked=f"bisect: {name}") for name in (good_name, bad_name))
    if good.commit == bad.commit:
        raise ConfigurationError(f"bisect: {good} and {bad} are one commit: give two, between which a metric moved")
    if git.run(good.root, "merge-base", "--is-ancestor", good.commit, bad.commit).returncode:
        raise ConfigurationError(f"bisect: {good} is no ancestor of {bad}: {_advice(good, bad)}")
    between = f"{good.commit}..{bad.commit}"
    after_good = set(git.run(good.root, "rev-list", "--ancestry-path", between).stdout.split())
    listed = git.run(good.root, "log", "--first-parent", "--reverse", f"--format={_FORMAT}", between, "--").stdout
    fields = [line.split("\x1f", 4) for line in listed.splitlines()]
    commits = [
        Commit(hash=commit, parents=parents.split(), author=author, date=date, subject=subject)
        for commit, parents, author, date, subject in fields
        if commit in after_good
    ]
    return History(good=good, bad=bad, commits=tuple(commits))


def _advice(good: Revision, bad: Revision) -> str:
    if git.run(good.root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return "this clone is shallow, and git does not see what lies between them: git fetch --unshallow"
    if not git.run(good.root, "merge-base", "--is-ancestor", bad.commit, good.commit).returncode:
        return "it is the other way round; GOOD comes first"
    base = git.run(good.root, "merge-base", good.commit, bad.commit).stdout.strip()
    return f"they part at {base[:10]}; is the metric good there? Then give that" if base else "they share no history"
