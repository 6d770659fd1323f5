"""Another revision of the repository, checked out beside it, and what pytest itself evaluates, which both sides have.

The bodies of a test run in ranks, each side's from its own tree. Fixtures, parameters, hooks and options are evaluated
in pytest's process, once. Of the test's module that is what its function and its fixtures lead to, and what runs when
it is imported; of conftest.py and plugins all of it; of the modules that these use all of it too.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.judging.confirmation import Evaluated
from pytest_distbench.releases import is_installed_here
from pytest_distbench.run.directory import is_of_an_ended_run

FOLDER = "reference"
"""Of a worktree, in the run directory; the commit follows."""

_GIT_TIMEOUT_S = 300.0
_SHORT = 10
_LINES = 4
_LARGE_BYTES = 1 << 26
"""Data that nobody told git of; a copy would take longer than it is worth."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of the repository that pytest's root folder belongs to."""

    name: str
    commit: str
    root: Path

    def __str__(self) -> str:
        short = self.commit[:_SHORT]
        return short if self.commit.startswith(self.name) else f"{self.name} ({short})"


def find_revision(name: str, inside: Path, *, asked: str = "") -> Revision:
    asked = asked or f"--distbench-against {name}"
    if shutil.which("git") is None:
        raise ConfigurationError(f"{asked}: there is no git on PATH")
    top = _git(inside, "rev-parse", "--show-toplevel")
    if top.returncode:
        raise ConfigurationError(f"{asked}: git finds no working tree at {inside}: {_said(top)}")
    found = _git(inside, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode:
        raise ConfigurationError(
            f"{asked}: the repository {top.stdout.strip()} has no commit of that name; see "
            "'git branch -a' and 'git tag'. A clone made by CI may be shallow: fetch the commit first"
        )
    return Revision(name, found.stdout.strip(), Path(top.stdout.strip()).resolve())


@contextlib.contextmanager
def check_out(revision: Revision, run_directory: Path, *, named: str = "") -> Iterator[Path]:
    """Have a revision in a folder of the run directory; afterwards neither the folder nor git's note of it is left.

    The working tree and its index are not touched, and no hook runs. What a run that was killed has left goes first. A
    revision that is there already, for another Python, has another folder. The folder is named after another commit
    where one is given.
    """
    remove_stale(revision.root)
    name = f"{FOLDER}-{(named or revision.commit)[:_SHORT]}"
    tree = run_directory / name
    for number in itertools.count(2):
        if not tree.exists():
            break
        tree = run_directory / f"{name}-{number}"
    try:
        _add(revision.root, tree, revision)
        yield tree
    finally:
        _remove(revision.root, tree)


@contextlib.contextmanager
def copy_beside(root: Path, run_directory: Path, *, named: str) -> Iterator[Path]:
    """Have the working tree itself where a revision would be: what differs from HEAD is copied, what it ignores linked.

    Raises:
        LauncherError: it is not to be had: a submodule differs, or what git does not know is large.
    """
    with check_out(find_revision("HEAD", root, asked="a copy of this tree"), run_directory, named=named) as tree:
        others = ("ls-files", "--others", "--exclude-standard", "-z")
        for name in [*_names(root, "diff", "--name-only", "--no-renames", "-z", "HEAD"), *_names(root, *others)]:
            if not (root / name).resolve().is_relative_to(run_directory.resolve()):
                _copy(root / name, tree / name)
        for name in _names(root, *others, "--ignored", "--directory"):
            if Path(name).name != "__pycache__" and not os.path.lexists(tree / name):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).symlink_to(root / name)
        yield tree


def _names(root: Path, *arguments: str) -> list[str]:
    listed = _git(root, *arguments)
    if listed.returncode:
        raise LauncherError(f"git could not list what is in {root}: {_said(listed)}")
    return [name.removesuffix("/") for name in listed.stdout.split("\0") if name]


def _copy(source: Path, target: Path) -> None:
    if (source.is_dir() and not source.is_symlink()) or (source.is_file() and source.stat().st_size > _LARGE_BYTES):
        raise LauncherError(f"{source} is no file to be copied")
    target.unlink(missing_ok=True)
    if os.path.lexists(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _add(root: Path, tree: Path, revision: Revision) -> None:
    """Make a worktree, with the submodules that the working tree has: git leaves them empty."""
    made = _git(root, "worktree", "add", "--quiet", "--detach", "--force", str(tree), revision.commit)
    if made.returncode:
        raise LauncherError(f"git could not check out {revision} beside the working tree: {_said(made)}")
    for path, commit in _submodules(tree):
        source = root / path
        if not (source / ".git").exists():
            continue  # not in the working tree either
        if _git(source, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise LauncherError(
                f"{revision} has the submodule {path} at {commit[:_SHORT]}, which is not here: "
                f"git -C {source} fetch origin {commit}"
            )
        _add(source, tree / path, Revision(f"{revision.name}:{path}", commit, source))


def _submodules(tree: Path) -> list[tuple[str, str]]:
    if not (tree / ".gitmodules").exists():
        return []
    listed = _git(tree, "ls-tree", "-r", "-z", "HEAD").stdout.split("\0")
    entries = [line.partition("\t") for line in listed if line.startswith("160000 commit ")]
    return [(path, description.split()[2]) for description, _, path in entries]


def remove_stale(root: Path) -> None:
    """Forget the worktrees of runs that were killed, known by their place; nobody else's are touched."""
    for line in _git(root, "worktree", "list", "--porcelain").stdout.splitlines():
        key, _, value = line.partition(" ")
        tree = Path(value)
        # A folder that is not here may be in a container that shares this checkout: git forgets it, some day later.
        if key == "worktree" and tree.name.startswith(FOLDER) and tree.exists() and is_of_an_ended_run(tree.parent):
            _remove(root, tree)
    _git(root, "worktree", "prune", "--expire=1.day.ago")


def _remove(root: Path, tree: Path) -> None:
    """Whatever state it is in: files that a rank left there, or a folder that is gone already."""
    for path, _ in _submodules(tree):
        if (root / path / ".git").exists():
            _remove(root / path, tree / path)
    if _git(root, "worktree", "remove", "--force", "--force", str(tree)).returncode:
        shutil.rmtree(tree, ignore_errors=True)
        _git(root, "worktree", "remove", "--force", "--force", str(tree))


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return git.run(folder, *arguments, timeout_s=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(arguments, 1, "", str(error))


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what it printed: the reason often stands before the last line, which says what to do about it."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return " | ".join(lines[-_LINES:]) if lines else f"git ended with exit code {done.returncode}"


_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a test asks pytest to evaluate.

    Attributes:
        function: of the test, or the class that it is a method of; where it stands in the module.
        bodies: functions of the module that ranks run.
        plugins: names of modules; of conftest.py files too.
        ini: the file with pytest's options; None: there is none.
    """

    module: str = ""
    function: str = ""
    bodies: frozenset[str] = frozenset()
    plugins: Sequence[str] = ()
    ini: Path | None = None


def differing(evaluation: Evaluation, revision: Revision, moved: Sequence[tuple[Path, Path]] = ()) -> Evaluated:
    """The files that pytest evaluates otherwise than it would at a revision: those of the test, or what they use.

    Args:
        moved: where files are, and where they were then.
    """
    listed = git.run(revision.root, "diff", "--name-only", "-z", revision.commit, "--")
    found = _Sources(revision, set(filter(None, listed.stdout.split("\0"))), dict(moved))
    names = [found.name_of(evaluation.ini)] if evaluation.ini and found.has_other_options(evaluation.ini) else []
    names += found.differing(evaluation.module, evaluation)
    names += itertools.chain.from_iterable(map(found.differing, evaluation.plugins))
    if names:
        return Evaluated(names)
    return Evaluated(list(found.differing_of_used()), are_of_the_test=False)


class _Sources:
    def __init__(self, revision: Revision, changed: set[str], moved: Mapping[Path, Path]) -> None:
        self._revision = revision
        self._moved = moved
        self._changed = changed
        self._seen: set[str] = set()
        self._used: list[str] = []

    def name_of(self, path: Path) -> str:
        """A path below the repository, as git has it; empty where it is elsewhere."""
        resolved = path.resolve()
        is_ours = resolved.is_relative_to(self._revision.root) and not resolved.is_relative_to(_PACKAGE)
        return resolved.relative_to(self._revision.root).as_posix() if is_ours else ""

    def differing(self, module: str, evaluation: Evaluation | None = None) -> list[str]:
        file = getattr(sys.modules.get(module), "__file__", None)
        if not file or module in self._seen or not (name := self.name_of(Path(file))) or is_installed_here(file):
            return []
        self._seen.add(module)
        text = Path(file).read_text(errors="replace")
        now = _evaluated(text, evaluation)
        self._used += _modules_used(now, text, module)
        if name not in self._changed:
            return []
        then = _evaluated(self._text_of(self.name_of(self._moved.get(Path(file).resolve(), Path(file)))), evaluation)
        return [name] if _code(now) != _code(then) else []

    def differing_of_used(self) -> Iterator[str]:
        """The files of the modules that were noted, and of those that these use, if they differ."""
        while self._used:
            yield from self.differing(self._used.pop())

    def has_other_options(self, ini: Path) -> bool:
        name = self.name_of(ini)
        now, then = ((read, ini.suffix) for read in (ini.read_text(), self._text_of(name)))
        return name in self._changed and _options(*now) != _options(*then)

    def _text_of(self, name: str) -> str:
        return git.run(self._revision.root, "show", f"{self._revision.commit}:{name}").stdout


def _evaluated(text: str, evaluation: Evaluation | None) -> list[ast.stmt]:
    """The statements of a module that pytest evaluates: all, or those that a test leads to; none of what cannot run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [s for s in body if not _is_text(s)] or body[:1]  # docstrings
    statements = [s for s in tree.body if not _is_text(s)]
    if evaluation is None:
        return statements
    named = {name: s for s in statements for name in _names_made(s) if name not in evaluation.bodies}
    wanted = [s for s in statements if not _names_made(s)]
    wanted += [s for name, s in named.items() if name == evaluation.function or _is_fixture(s)]
    reached: list[ast.stmt] = []
    while wanted:
        statement = wanted.pop()
        if any(statement is known for known in reached):
            continue
        reached.append(statement)
        wanted += [named[name] for name in _names_used([statement]) if name in named]
    return [s for s in statements if any(s is known for known in reached)]


def _code(statements: Sequence[ast.stmt]) -> list[str]:
    """Without imports: what they bring is looked at where it is used."""
    return [ast.dump(s) for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _names_made(statement: ast.stmt) -> list[str]:
    """What a statement does nothing but give a name: it counts where the name is used."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [t.id for t in targets if isinstance(t, ast.Name)] if isinstance(statement, _ASSIGNMENTS) else []


_ASSIGNMENTS = (ast.Assign, ast.AnnAssign)


def _is_fixture(statement: ast.stmt) -> bool:
    """Whether something calls it that does not name it: other tests have no decorators that matter here."""
    decorators = getattr(statement, "decorator_list", [])
    return any("fixture" in ast.dump(d) for d in decorators)


def _names_used(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that are read; those of fixtures stand among the parameters."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}


def _modules_used(statements: Sequence[ast.stmt], text: str, module: str) -> Iterator[str]:
    used = _names_used(statements)
    package = getattr(sys.modules.get(module), "__package__", "") or ""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            read = [alias.name for alias in node.names if (alias.asname or alias.name) in used or alias.name == "*"]
            names = [base, *(f"{base}.{name}" for name in read)] if read else []
        else:
            continue
        yield from (name for name in names if name in sys.modules)


def _options(text: str, suffix: str) -> object:
    with contextlib.suppress(tomllib.TOMLDecodeError, configparser.Error):
        if suffix == ".toml":
            read = tomllib.loads(text)
            return read.get("tool", {}).get("pytest", {}), read.get("pytest", {})
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        return [dict(parser[name]) for name in ("pytest", "tool:pytest") if parser.has_section(name)]
    return text
