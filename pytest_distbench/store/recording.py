"""Which commit recorded a baseline: the last one that changed the numbers in its file, which git knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.store.baselines import BASELINE_FILES

_MOST_COMMITS = 50
_TIMEOUT_S = 60.0


class NotRecorded(DistbenchError):
    """Nobody knows which commit recorded a baseline; the text says why, and what to do."""


def recording_commit(path: Path, root: Path) -> str:
    """The commit whose tree is what was measured for the baseline in a file.

    What was set by hand (tolerances, bounds, expected regressions) is no recording, so that commits which changed
    nothing else are passed over. A merge counts as its parents do.

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
    commits = _git(root, "log", f"--max-count={_MOST_COMMITS}", "--format=%H", "--", name).split()
    if not commits:
        raise NotRecorded(f"no commit has its baseline {name}")
    found = next((commit for commit in commits if _recorded(root, commit, name)), commits[-1])
    if found in _ends_of_clone(root):
        raise NotRecorded(
            "this is a shallow clone, which does not reach the commit that recorded its baseline: git fetch "
            "--deepen=100, or in GitHub Actions fetch-depth: 0 for actions/checkout"
        )
    return found


def _recorded(root: Path, commit: str, name: str) -> bool:
    """Whether a commit changed numbers: those of its parent are others, or nobody can read them."""
    now, before = (_git(root, "show", f"{revision}:{name}") for revision in (commit, f"{commit}^"))
    try:
        new, old = (BASELINE_FILES.parse(text.encode(), root / name).entry for text in (now, before))
    except StoredFileError:
        return True
    numbers = [{key: (m.launches, m.minimum) for key, m in entry.metrics.items()} for entry in (new, old)]
    return numbers[0] != numbers[1]


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
