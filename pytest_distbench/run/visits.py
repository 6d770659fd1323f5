"""Visits: runs of pytest at other commits, each in a worktree of its own that is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.installation import is_installed_here
from pytest_distbench.launch.site import processes
from pytest_distbench.records.options import OPTIONS
from pytest_distbench.records.plan import FOREIGN_TREE, TREE
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.directory import RunDirectory
from pytest_distbench.run.untracked import link
from pytest_distbench.run.worktree import Revision, check_out, remove_stale
from pytest_distbench.store.run_record import read_run_record

_PACKAGE = Path(__file__).resolve().parents[1]
_SETTLE_S = 20.0
"""For pytest to end its ranks and remove its worktree; then they are killed."""
_TAIL_LINES = 3
_PYTEST_FAILED = 1
"""Exit code of pytest: tests ran, and some failed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of pytest measured; where it is nothing, why."""

    results: Sequence[CaseResult]
    why_not: str = ""


class Visits:
    """Runs a test at commits of a repository, found from a folder below its root.

    What git does not track is linked into each worktree; files that are taken along are copied from the working tree
    over what the commit has. A visit takes no longer than the time-out.
    """

    def __init__(
        self, root: Path, folder: Path, options: Sequence[str], *, timeout_s: float, links: Sequence[Path] = (),
        taken: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        self._root, self._below = root, folder.resolve().relative_to(root)
        self._options = list(options)
        self._timeout_s = timeout_s
        self._links, self._taken = links, taken
        self._directory = RunDirectory(root)
        self._with_taken: dict[str, str] = {}

    def close(self) -> None:
        """Leave nothing behind, also of a run of pytest that had to be killed."""
        remove_stale(self._root)
        self._directory.close(keep=False)

    def alone(self, commit: Revision, test: str, *, launches: int) -> Measured:
        """Launch the test of a commit, and compare it with nothing."""
        empty = self._directory.path / "baselines"
        options = (f"--distbench-launches={launches}", f"--distbench-max-launches={launches}", *_clear_options())
        return self._run(commit, test, [*options, f"--distbench-baselines={empty}", "--distbench-missing=warn"])

    def in_turns(self, commit: Revision, test: str, good: Revision, *, pairs: int | None) -> Measured:
        """Launch the test of a commit in turns with GOOD, so many times; None: until it has an answer."""
        numbers = [] if pairs is None else [f"--distbench-launches={pairs}", f"--distbench-max-launches={pairs}"]
        against = self._taken_along(good) if self._taken else good.commit
        return self._run(commit, test, [*_clear_options(), *numbers, f"--distbench-against={against}"])

    def _run(self, commit: Revision, test: str, options: Sequence[str]) -> Measured:
        record = self._directory.path / "run.json"
        record.unlink(missing_ok=True)
        try:
            with check_out(commit, self._directory.path) as tree:
                link(self._links, root=self._root, tree=tree)
                self._take_along(tree)
                if not (tree / self._below / test.partition("::")[0]).is_file():
                    return Measured([], f"there is no {test.partition('::')[0]}")
                links = [f"--distbench-against-link={','.join(str(tree / path) for path in self._links)}"] * bool(
                    self._links
                )
                words = [test, *self._options, "-p", "no:cacheprovider", "--color=no", f"--distbench-json={record}"]
                code = self._pytest(tree, [*words, *links, *options])
        except LauncherError as error:
            return Measured([], str(error))
        if code is None:
            return Measured([], f"took longer than {self._timeout_s:g} s{self._last_words()}")
        results = read_run_record(record).results if record.exists() else []
        if code not in (0, _PYTEST_FAILED) or not results:
            ended = processes.ending(code) if code < 0 else f"ended with exit code {code}"
            return Measured([], f"pytest {ended} and measured nothing{self._last_words()}")
        return Measured(results)

    def _pytest(self, tree: Path, words: Sequence[str]) -> int | None:
        """Run pytest in a worktree, below a guardian; None: its time was over. Nothing of it is left."""
        variables = {**os.environ, "PYTHONPATH": self._python_path(tree), TREE: str(tree)}
        variables[FOREIGN_TREE] = str(self._root)
        lifeline, ours = os.pipe()
        guardian = [sys.executable, "-P", "-m", "pytest_distbench.launch.site.guardian", str(lifeline)]
        command = [*guardian, str(self._directory.path), sys.executable, "-P", "-m", "pytest", *words]
        try:
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    command, env=variables, cwd=tree / self._below, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=[lifeline], start_new_session=True,
                )  # fmt: skip
            try:
                return process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:  # let it clean up
                    processes.send(processes.children(process.pid), signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_SETTLE_S)
                os.close(ours)  # the guardian now kills what is left
                ours = -1
                process.wait()
        finally:
            for descriptor in (lifeline, ours):
                if descriptor >= 0:
                    os.close(descriptor)

    def _python_path(self, tree: Path) -> str:
        """Where an editable install, or PYTHONPATH, leads into the working tree, the worktree goes first."""
        ours = [Path(p).resolve() for p in sys.path[not sys.flags.safe_path :] if p and not is_installed_here(p)]
        below = [p for p in ours if p.is_relative_to(self._root) and p != _PACKAGE.parent]
        mapped = [str(tree / p.relative_to(self._root)) for p in below]
        kept = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() not in below]
        return os.pathsep.join([*mapped, *kept])

    def _take_along(self, tree: Path) -> None:
        for path in self._taken:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._root / path, tree / path)

    def _taken_along(self, good: Revision) -> str:
        """A commit, on no branch, that has GOOD's files and those that are taken along: git makes worktrees of it."""
        if good.commit not in self._with_taken:
            with check_out(good, self._directory.path) as tree:
                self._take_along(tree)
                _git(tree, "add", "--force", "--", *map(str, self._taken))
                files = _git(tree, "write-tree")
                who = ("-c", "user.name=distbench", "-c", "user.email=distbench@localhost")
                made = _git(tree, *who, "commit-tree", "-p", good.commit, "-m", "distbench bisect --take", files)
                self._with_taken[good.commit] = made
        return self._with_taken[good.commit]

    @property
    def _log(self) -> Path:
        return self._directory.path / "log.txt"

    def _last_words(self) -> str:
        """The last lines that pytest printed of errors, else the last of all."""
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip(" =!")]
        errors = [line.removeprefix("E") for line in lines if line.startswith("E  ")]
        return "".join(f"\n{line.strip()}" for line in (errors or lines)[-_TAIL_LINES:])


def refuse(options: Sequence[str]) -> None:
    """Options of ours that a visit sets itself, or that have no place in one."""
    for given in options:
        name = given.partition("=")[0].removeprefix("--distbench-")
        row = OPTIONS.get(name) if given.startswith("--distbench-") else None
        if row is not None and row.calibration != "free" and name != "against-tolerance":
            raise ConfigurationError(f"bisect: leave out --distbench-{name}: visits compare each commit with GOOD")


def _clear_options() -> list[str]:
    """Given last: that goes before ini files, ``addopts`` and PYTEST_ADDOPTS."""
    return [f"--distbench-{name}={o.cleared}" for name, o in OPTIONS.items() if o.calibration == "cleared"]


def _git(folder: Path, *arguments: str) -> str:
    done = git.run(folder, *arguments)
    if done.returncode:
        raise LauncherError(f"git {arguments[0]} in {folder}: {done.stderr.strip()}")
    return done.stdout.strip()
