"""Judge a change with the tests of its base: ``--distbench-judge=base``.

There are three trees. Nothing runs in the *working tree*. The *base* is a worktree of the revision: pytest and the
ranks of the revision run in it. The *candidate* is a copy of the working tree in which the judging files are the
base's: only the ranks of the candidate run there. So pytest evaluates the tests, fixtures, conftest.py, plugins and
settings of the base, even if the change has other ones.

A rank runs code of the change as this user. Nothing protects the machine from malicious code.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePath

import msgspec

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.site.processes import end_with
from pytest_distbench.records.record import Record
from pytest_distbench.releases import is_installed_here, move_editables
from pytest_distbench.run.directory import (
    PACKAGE,
    Revision,
    RunDirectory,
    check_out,
    copy_working_tree,
    differing_names,
    find_revision,
)

JUDGING_FOLDERS = frozenset({"tests", "test", "suites", "baselines"})  # all files below a folder of such a name judge
JUDGING_FILES = frozenset({
    "conftest.py", "pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg",
})  # fmt: skip
"""Names of files that judge in any folder, because pytest reads them."""

_VARIABLE = "DISTBENCH_JUDGED"
"""Environment variable of pytest in the base, and of its workers, with the path of the file of :class:`Judged`."""

_WRITING = frozenset({
    "--distbench-out", "--distbench-json", "--distbench-report", "--junitxml", "--junit-xml", "--log-file",
    "--basetemp", "--report-log", "--html", "--json-report-file", "--alluredir", "--benchmark-json",
})  # fmt: skip
"""Options with the path of an output, which is relative to the working directory of the command."""


class Judged(Record, frozen=True, kw_only=True):
    """A change that its base judges, for the process of pytest.

    Attributes:
        revision: the base as it was named, for instance ``main``.
        root: the root of the working tree.
        folder: the working directory of the command.
        base: the tree that pytest runs in.
        differing: names of the files that differ between the working tree and the base, new ones too.
        pid: the process that removes the trees.
    """

    revision: str
    commit: str
    root: str
    folder: str
    base: str
    candidate: str
    differing: list[str]
    pid: int

    @property
    def name(self) -> str:
        return str(Revision(self.revision, self.commit, Path(self.root)))

    def in_working_tree(self, path: Path) -> Path:
        """Map a path of the base to the working tree; another path stays."""
        return Path(self.root, path.relative_to(self.base)) if path.is_relative_to(self.base) else path

    def in_base(self, path: str) -> str:
        """Map a path of the working tree to the base; another path, and one of an installed package, stays."""
        spellings = () if not path or is_installed_here(path) else (Path(path), Path(path).resolve())
        found = next((spelling for spelling in spellings if spelling.is_relative_to(self.root)), None)
        return path if found is None else str(Path(self.base, found.relative_to(self.root)))

    def keep_out(self) -> None:
        """Make this process import modules of the base instead of the working tree."""
        sys.path[:] = dict.fromkeys(map(self.in_base, sys.path))
        move_editables(self.in_base)

    def check_imports(self) -> None:
        """Check that this process has imported nothing of the working tree, as by an import hook."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or not Path(file).is_absolute() or Path(file).is_relative_to(PACKAGE):
                continue  # torch gives some a name alone
            if self.in_base(file) != file:
                raise ConfigurationError(
                    f"--distbench-judge=base: pytest imported module {name} from {file}, of the change itself; does an "
                    "import hook lead there? Install the project by setuptools: pip install -e ."
                )

    def take_over(self, patterns: Sequence[str], tests: Sequence[str]) -> list[str]:
        """Put the judging files of the base into the candidate; return the files of the change that are not used.

        Args:
            patterns: patterns of the names of test files, pytest's ``python_files``.
            tests: the tests on the command line, with the paths of their files.
        """
        given = {os.path.relpath(Path.cwd() / test.partition("::")[0], self.base) for test in tests}
        unused = []
        for name in self.differing:
            if not (_judges(name, patterns) or name in given):
                continue
            theirs, ours = Path(self.base, name), Path(self.candidate, name)
            is_there, was_there = os.path.lexists(theirs), os.path.lexists(ours)
            if not ours.parent.resolve().is_relative_to(Path(self.candidate).resolve()):
                raise ConfigurationError(f"{name}: the change has put a link out of the repository in its path")
            if (theirs / ".git").exists() or (ours / ".git").exists():
                raise ConfigurationError(f"{name}: a submodule with tests cannot be taken from the base")
            unused.append(f"{name} ({'changed' if is_there and was_there else 'deleted' if is_there else 'new'})")
            if not ours.is_dir() or ours.is_symlink():
                ours.unlink(missing_ok=True)
            if is_there and (theirs.is_symlink() or theirs.is_file()):
                ours.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(theirs, ours, follow_symlinks=False)
        return unused


def _judges(name: str, patterns: Sequence[str]) -> bool:
    path = PurePath(name)
    return (
        path.name in JUDGING_FILES
        or not JUDGING_FOLDERS.isdisjoint(path.parts)
        or any(fnmatch(name if "/" in pattern else path.name, pattern) for pattern in patterns)
    )


@functools.cache
def judged_here() -> Judged | None:
    """The change that this process judges, or None outside of a base."""
    if _VARIABLE not in os.environ:
        return None
    with contextlib.suppress(OSError):  # the run is over
        judged = msgspec.json.decode(Path(os.environ[_VARIABLE]).read_bytes(), type=Judged)
        return judged if Path.cwd().is_relative_to(judged.base) else None  # a test may run pytest elsewhere
    return None


@contextlib.contextmanager
def made_ready(arguments: Sequence[str]) -> Iterator[tuple[Judged, list[str], dict[str, str]]]:
    """Make the trees; yield the change, and the arguments and variables of pytest in the base.

    Raises:
        ConfigurationError: no base is named, or pytest cannot run in it with these arguments.
        LauncherError: git could not check out a tree.
    """
    folder = Path.cwd()
    judge = _last("--distbench-judge", arguments)
    if judge not in ("", "base"):
        raise ConfigurationError(
            f"distbench judge --distbench-judge={judge}: it is the base that judges here; leave it out"
        )
    name = _last("--distbench-against", [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *arguments])
    if not name:
        raise ConfigurationError(
            "--distbench-judge=base: give --distbench-against REF on the command line too: what an ini file says of it "
            "is the candidate's"
        )
    revision = find_revision(name, folder)
    differing = differing_names(revision)
    own = [name for name in differing if Path(revision.root, name).is_relative_to(PACKAGE)]
    if own and not is_installed_here(str(PACKAGE)):
        raise ConfigurationError(
            f"--distbench-judge=base: the pytest-distbench that runs is the candidate's own: {own[0]} differs from "
            f"{revision}. Install one outside of {revision.root}"
        )
    directory = RunDirectory(revision.root)
    try:
        if directory.path.resolve().is_relative_to(revision.root):
            raise ConfigurationError(
                f"--distbench-judge=base: TMPDIR is in the repository, so pytest would find the candidate's ini file "
                f"above the base; wanted TMPDIR=/tmp or another folder outside of {revision.root}"
            )
        with contextlib.ExitStack() as trees:
            head = git.describe_commit(revision.root).partition("-")[0]
            judged = Judged(
                revision=revision.name,
                commit=revision.commit,
                root=str(revision.root),
                folder=str(folder),
                base=str(trees.enter_context(check_out(revision, directory.path)).resolve()),
                candidate=str(
                    trees.enter_context(copy_working_tree(revision.root, directory.path, named=head)).resolve()
                ),
                differing=differing,
                pid=os.getpid(),
            )
            file = directory.path / "judged.json"
            file.write_bytes(msgspec.json.encode(judged))
            if not Path(judged.in_base(str(folder))).is_dir():
                raise ConfigurationError(
                    f"--distbench-judge=base: {revision} has no folder {folder}: run it from above"
                )
            path = [judged.in_base(place) for place in sys.path]
            own_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            leading = dict.fromkeys([new for new, old in zip(path, sys.path, strict=True) if new != old])
            places = [*leading, *(judged.in_base(place) for place in own_path if place)]
            variables = {_VARIABLE: str(file), "PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
            there = _arguments_there(arguments, judged)
            yield judged, there if judge else ["--distbench-judge=base", *there], variables
    finally:
        directory.close()


def _last(option: str, arguments: Sequence[str]) -> str:
    found = ""
    for word, following in itertools.pairwise([*arguments, ""]):
        if word == option or word.startswith(f"{option}="):
            found = following if word == option else word.partition("=")[2]
    return found


def _arguments_there(arguments: Sequence[str], judged: Judged) -> list[str]:
    """Map paths among the arguments to the base, but not those of outputs."""
    found, before = [], ""
    for word in arguments:
        is_option = word.startswith("-")
        option, equals, value = word.partition("=") if is_option else ("", "", word)
        path, separator, test = value.partition("::")
        there = judged.in_base(str(Path(judged.folder, path)))
        if (option or before) in _WRITING:
            path = str(Path(judged.folder, path)) if path else path
        elif path and os.path.lexists(there):
            path = there if Path(path).is_absolute() else path
        elif not is_option and not before.startswith("-") and Path(judged.folder, path).exists():
            raise ConfigurationError(
                f"--distbench-judge=base: {path} is not in {judged.name}, whose tests judge. Run what is new without "
                "--distbench-judge"
            )
        found.append(f"{option}{equals}{path}{separator}{test}")
        before = word if is_option and not equals else ""
    return found


PROGRAM = (
    "-c",
    """
from pytest_distbench.run.judge import prepare
prepare()
import runpy
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
""",
)
"""Arguments of Python that run pytest in the base, where plugins of the working tree are the base's."""


def prepare() -> None:
    """Keep the working tree out of this process, and unload this package, which pytest imports as a plugin."""
    judged = judged_here()
    assert judged is not None
    judged.keep_out()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name]:
        del sys.modules[name]


def begin(arguments: Sequence[str]) -> None:
    """Replace this process by ``distbench judge``, which makes the base and starts pytest in it.

    In the base keep the working tree out of this process instead.
    """
    judged = judged_here()
    if judged is None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", PACKAGE.name, "judge", *map(str, arguments)])
    judged.keep_out()
    if os.getppid() == judged.pid:
        end_with(judged.pid)
