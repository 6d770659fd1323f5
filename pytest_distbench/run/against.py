"""The other side of an A/B comparison: another revision of the repository, another Python, or both.

A file that git does not track is linked into the worktree of a revision, or named in the error of its launch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.launch.supervise import Side
from pytest_distbench.machine.hardware import Interpreter, find_interpreter
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, Work
from pytest_distbench.records.record import replace
from pytest_distbench.releases import is_installed_here
from pytest_distbench.run.directory import FOLDER, PACKAGE, Revision, check_out, copy_working_tree, find_revision
from pytest_distbench.run.kinds import kind_of, run_launch
from pytest_distbench.run.request import Settings

if TYPE_CHECKING:
    from pytest_distbench.run.judge import Judged

OPTION = "distbench_against_link"
_QUOTED = re.compile(r"""['"]([^'"\n]{1,400})['"]""")
_NOT_THERE = ("FileNotFoundError", "No such file or directory", "ModuleNotFoundError", "does not exist", "not found")


def find_links(given: Sequence[str], *, folder: Path, root: Path) -> tuple[Path, ...]:
    """Convert paths relative to the folder of the tests to paths relative to the repository."""
    found = []
    for text in given:
        path = Path(folder, text)
        if not path.exists():
            raise ConfigurationError(f"{OPTION}: there is no {path} to link")
        place = path.parent.resolve() / path.name
        if not place.is_relative_to(root) or place == root:
            raise ConfigurationError(
                f"{OPTION}: {path} is not inside the repository {root}; leave it out, as ranks find it where it is"
            )
        found.append(place.relative_to(root))
    return tuple(found)


def link(paths: Sequence[Path], *, root: Path, tree: Path) -> None:
    for path in paths:
        target = tree / path
        if target.is_symlink() and target.readlink() == root / path:
            continue  # a worker of pytest-xdist comes after others
        if target.exists() or target.is_symlink():
            raise LauncherError(f"{OPTION}: git tracks {path} in the other revision; leave it out")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(root / path)


def find_missed(record: LaunchRecord, *, root: Path, tree: Path, folder: Path) -> tuple[Path, Path] | None:
    """A path that a launch missed although the working tree has it, and the topmost part of it that is missing.

    None if there is none. Relative paths in the errors of the launch are relative to ``folder``.
    """
    names = []  # what errors that say that something is not there have in quotes; of a module the files it may be in
    for fate in record.fates:
        text = f"{fate.error.kind}: {fate.error.message}" if fate.error is not None else fate.log_tail
        for line in (line for line in text.splitlines() if any(words in line for words in _NOT_THERE)):
            is_module = "ModuleNotFoundError" in line or "No module named" in line
            for name in _QUOTED.findall(line):
                names += [name, f"{name.replace('.', '/')}.py"] if is_module else [name]
    for place in (Path(start, name) for name in names for start in (tree, folder)):
        if not place.is_relative_to(tree) or place.exists():
            continue
        path = place.relative_to(tree)
        first = next((p for p in [*reversed(path.parents), path] if p != Path() and not (tree / p).exists()), path)
        if (root / path).exists():
            return path, first
    return None


def ignored(root: Path, read: Iterable[str], began: float) -> list[str]:
    """The topmost names below a repository of files that were read and that git ignores.

    Without those that are installed, hidden, or made since the run began (seconds of the wall clock).
    """
    listed = git.run(root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory").stdout
    names = {name.rstrip("/") for name in listed.split("\0")}
    found = set()
    for path in map(Path, read):
        parts = path.relative_to(root).parts
        is_ours = not is_installed_here(str(path)) and not any(part.startswith((".", "__pycache__")) for part in parts)
        if is_ours and path.exists() and path.stat().st_ctime < began:  # an archive sets st_mtime
            tops = {str(Path(*parts[:depth])) for depth in range(1, len(parts) + 1)}
            found |= tops & names
    return sorted(found)


_BUILDS = "TORCH_EXTENSIONS_DIR"
"""Variable with the folder in which torch builds extensions, by their names: the sides must not share it. The caches of
Inductor and Triton are keyed by content, and that of numba is next to the source: both sides may use them."""

VariantKey = tuple[str, Path | None, tuple[tuple[Path, Path], ...], bool]
LauncherKey = tuple[Path | None, bool] | None  # None for the launchers of the working tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The other side of an A/B comparison.

    Attributes:
        revision: the commit of this side, or None for the working tree.
        interpreter: the Python of this side, or None for the running one.
        is_itself: whether it has the tracked files and the Python of the candidate.
        renamed: (path now, path then) of the test's file and folder, if they were renamed since.
        is_exchanged: whether a copy of the candidate runs at the path that the revision had before, the revision at
            another, and both in new processes.
        judged: the change whose base judges, in whose tree pytest runs then, or None.
    """

    revision: Revision | None
    interpreter: Interpreter | None
    links: tuple[Path, ...] = ()
    is_itself: bool = False
    renamed: tuple[tuple[Path, Path], ...] = ()
    is_exchanged: bool = False
    judged: Judged | None = None

    @property
    def key(self) -> VariantKey:
        """Its identity: commit, Python, renamed paths of the test, and whether the paths are exchanged."""
        python, is_exchanged = self.launcher_key
        return "" if self.revision is None else self.revision.commit, python, self.renamed, is_exchanged

    @property
    def launcher_key(self) -> tuple[Path | None, bool]:
        """(Python, whether paths are exchanged): variants for which these are equal share launchers."""
        return None if self.interpreter is None else self.interpreter.executable, self.is_exchanged

    def __str__(self) -> str:
        parts = [str(part) for part in (self.revision, self.interpreter) if part is not None]
        return " with ".join(parts) or "the working tree"


def find_variant(settings: Settings, *, root: Path, folder: Path, judged: Judged | None = None) -> Variant:
    python = settings.against_python
    interpreter = find_interpreter(python, folder) if python else None
    if judged is not None:
        tree = Path(judged.root)
        with_links = find_links(settings.against_link, folder=judged.in_working_tree(root), root=tree)
        link(with_links, root=tree, tree=Path(judged.base))
        return Variant(
            revision=Revision(judged.revision, judged.commit, Path(judged.candidate)),
            interpreter=interpreter,
            is_itself=git.describe_commit(tree) == judged.commit and not python,
            judged=judged,
        )
    revision = find_revision(settings.against, root) if settings.against else None
    is_here = revision is not None and git.describe_commit(root) == revision.commit
    return Variant(
        revision=revision,
        links=() if revision is None else find_links(settings.against_link, folder=root, root=revision.root),
        interpreter=interpreter,
        is_itself=is_here and not python,
    )


class OtherSide:
    """Runs launches of a :class:`Variant`: makes its worktree, and plans for it from plans for the candidate.

    The worktree is in the run directory from its first use until :meth:`close`. Interleaved launches have a launcher
    each, by number, with a session of its own, so that the end of one does not end another.
    """

    builds_apart = True

    def __init__(self, variant: Variant, directory: Path, launcher: Callable[[int], Launcher]) -> None:
        self.variant = variant
        self._launcher = launcher
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._copy: _Copy | None = None

    def has(self, work: Work) -> bool:
        return all(Path(self._there(file)).is_file() for file in work.files)

    def launch(self, side: Side, ours: LaunchPlan, theirs: Sequence[LaunchPlan]) -> list[LaunchRecord | None]:
        """Run the candidate interleaved with one or more launches of this side.

        Returns the records, the candidate's first; None for one that was ended because another did not pass. Ranks
        inherit the memory layout of the process that they are forked from, which can make a difference of a few
        percent. If all sides run the same Python, the launchers are assigned at random each time, so that this
        difference becomes noise that the statistics include.
        """
        interleave, interpreter = kind_of(ours.work).interleave, self.variant.interpreter
        sides = [side, *(self._side(side, number) for number in range(len(theirs)))]
        if interpreter is None:
            dealt = random.sample(sides, len(sides))
            sides = [replaced(own, launcher=other.launcher) for own, other in zip(sides, dealt, strict=True)]
        plans = [ours, *(self._plan(plan, number) for number, plan in enumerate(theirs))]
        if self._copy is not None:
            plans[0] = replace(self._copy._plan(ours, 0), data_dir=ours.data_dir, delay=ours.delay)
        records = interleave(list(zip(plans, sides, strict=True)))
        return [records[0], *map(self._explain, records[1:], plans[1:])]

    def launch_alone(self, side: Side, plan: LaunchPlan) -> LaunchRecord:
        there = self._plan(plan, 0)
        record = self._explain(run_launch(there, self._side(side, 0)), there)
        assert record is not None
        return record

    def _side(self, side: Side, number: int) -> Side:
        interpreter = self.variant.interpreter
        return Side(
            launcher=functools.partial(self._launcher, number),
            python="" if interpreter is None else str(interpreter.executable),
            on_progress=side.on_progress,
        )

    def _explain(self, record: LaunchRecord | None, plan: LaunchPlan) -> LaunchRecord | None:
        """Name this side in the reason of a launch that failed, and a file that it lacks because git ignores it."""
        if record is None or record.outcome == "passed":
            return record
        reason = f"in {self.variant}: {record.reason}"
        revision = self.variant.revision
        if revision is not None and self.tree is not None:
            folder = Path(plan.folder)
            if missed := find_missed(record, root=revision.root, tree=self.tree, folder=folder):
                path, first = missed
                reason = (
                    f"in {self.variant}: {path} is in the working tree and not in the other revision; does git ignore "
                    f"it? To link it, write {OPTION} = {first} into the ini file ({record.reason})"
                )
        return replace(record, reason=reason)

    def _plan(self, plan: LaunchPlan, number: int) -> LaunchPlan:
        """Move every path of a plan into the worktree; each number has a data folder of its own."""
        path = [self._there(folder) for folder in plan.python_path]
        interpreter, judged, revision = self.variant.interpreter, self.variant.judged, self.variant.revision
        if interpreter is not None:
            path = [*python_path(interpreter, self._directory, path)]
        variables = dict(plan.variables)
        if "PYTHONPATH" in variables:
            variables["PYTHONPATH"] = os.pathsep.join(map(self._there, variables["PYTHONPATH"].split(os.pathsep)))
        if self.builds_apart and revision is not None and _BUILDS not in plan.own_variables:
            variables.setdefault(_BUILDS, str(self._directory / f"extensions-{revision.commit}"))
        data_dir = self._directory / f"data-{FOLDER if self.tree is None else self.tree.name}-{number}"
        data_dir.mkdir(exist_ok=True)
        folder = self._there(plan.folder)
        is_there = plan.is_mirrored or "{" in folder or Path(folder).is_dir()
        if not is_there:  # pytest was started in a folder that this side lacks
            folder = str(self.tree)
        return replace(
            plan,
            work=plan.work.with_files(self._there),
            folder=folder,
            data_dir=str(data_dir),
            python_path=path,
            variables=variables,
            delay=0.0,  # a slowdown is injected into the candidate alone
            tree=str(self.tree or ""),
            foreign_tree=judged.root if judged is not None else "" if revision is None else str(revision.root),
        )

    def close(self) -> None:
        self._stack.close()

    @functools.cached_property
    def tree(self) -> Path | None:
        """The worktree of the revision, made at the first call, or None without a revision."""
        revision = self.variant.revision
        if revision is None:
            return None
        if self.variant.judged is not None:
            return Path(self.variant.judged.base)
        if self.variant.is_exchanged:  # first: it has the path that the revision had
            copy = _Copy(Variant(revision=revision, interpreter=None), self._directory, self._launcher)
            self._stack.callback(copy.close)
            with contextlib.suppress(LauncherError, ConfigurationError, OSError):  # then other processes alone
                self._copy = copy if copy.tree is not None else None
        tree = self._stack.enter_context(check_out(revision, self._directory))
        link(self.variant.links, root=revision.root, tree=tree)
        return tree

    def _there(self, path: str) -> str:
        """Map a path of the candidate into the worktree, to the name that it had there if it was renamed."""
        revision = self.variant.revision
        if revision is None or not path or is_installed_here(path):
            return path
        for spelling in (Path(path), Path(path).resolve()):
            if not spelling.is_relative_to(revision.root) or spelling.is_relative_to(PACKAGE):
                continue
            assert self.tree is not None
            there = self.tree / spelling.relative_to(revision.root)
            for now, then in self.variant.renamed:
                if not spelling.is_relative_to(now):
                    continue
                before = self.tree / then.relative_to(revision.root) / spelling.relative_to(now)
                if before.exists() and (spelling == now or not there.exists()):
                    return str(before)
            return str(there)
        return path


class Candidate(OtherSide):
    """The candidate under --distbench-judge=base: moves plans for the tree of the base into the candidate's."""

    builds_apart = False

    def __init__(self, judged: Judged, directory: Path, launcher: Callable[[int], Launcher]) -> None:
        base = Revision("the candidate", "", Path(judged.base))
        super().__init__(Variant(revision=base, interpreter=None, judged=judged), directory, launcher)

    def move(self, plan: LaunchPlan) -> LaunchPlan:
        return replace(self._plan(plan, 0), data_dir=plan.data_dir, delay=plan.delay)

    @functools.cached_property
    def tree(self) -> Path:
        assert self.variant.judged is not None
        return Path(self.variant.judged.candidate)


class _Copy(OtherSide):
    builds_apart = False

    @functools.cached_property
    def tree(self) -> Path | None:
        revision = self.variant.revision
        assert revision is not None
        return self._stack.enter_context(copy_working_tree(revision.root, self._directory, named=revision.commit))


def outside(modules: Sequence[str], variant: Variant) -> tuple[str, ...]:
    """Select the modules outside of the repository, which are imported once for both sides."""
    if variant.revision is None:
        return tuple(modules)
    root = variant.revision.root if variant.judged is None else Path(variant.judged.base)
    return tuple(name for name in modules if not _is_below(name.partition(".")[0], root))


def python_path(interpreter: Interpreter, directory: Path, given: Sequence[str]) -> list[str]:
    """``sys.path`` for another Python: this package, the folders that the user added to this one, then its own.

    This package is linked into a folder of its own, because the folder it is installed in has this Python's torch.
    """
    folder = directory / "package"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / PACKAGE.name).symlink_to(PACKAGE)
    return [str(folder), *(path for path in given if path and not is_installed_here(path)), *interpreter.path]


def _is_below(name: str, root: Path) -> bool:
    found = [Path(folder, name) for folder in sys.path]
    return any(
        (path.is_dir() or path.with_suffix(".py").is_file())
        and path.resolve().is_relative_to(root)
        and not is_installed_here(str(path))
        for path in found
    )
