"""Find the changed files that pytest evaluates once for both sides of an A/B.

The bodies of a test run in ranks, each side's from its own tree. pytest's process evaluates fixtures, parameters, hooks
and options, so both sides have those of the candidate. Compared are the statements of the test's module that its
function and fixtures use or that run at its import, and all of conftest.py, plugins and the modules that these use.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import itertools
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.releases import is_installed_here
from pytest_distbench.run.confirm.rule import Evaluated
from pytest_distbench.run.directory import PACKAGE, Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The code that pytest itself evaluates for a test.

    Attributes:
        module: name of the test's module.
        function: name of the test function, or of its class.
        bodies: functions of the module that ranks run.
        plugins: names of modules, those of conftest.py files too.
        ini: the file with pytest's options, or None.
    """

    module: str = ""
    function: str = ""
    bodies: frozenset[str] = frozenset()
    plugins: Sequence[str] = ()
    ini: Path | None = None


def differing(evaluation: Evaluation, revision: Revision, renamed: Sequence[tuple[Path, Path]] = ()) -> Evaluated:
    """The files that pytest evaluates and that differ from a revision: those of the test, else the modules they use."""
    listed = git.run(revision.root, "diff", "--name-only", "-z", revision.commit, "--")
    found = _Sources(revision, set(filter(None, listed.stdout.split("\0"))), dict(renamed))
    names = [found.name_of(evaluation.ini)] if evaluation.ini and found.has_other_options(evaluation.ini) else []
    names += found.differing(evaluation.module, evaluation)
    names += itertools.chain.from_iterable(map(found.differing, evaluation.plugins))
    if names:
        return names, True
    return list(found.differing_of_used()), False


class _Sources:
    def __init__(self, revision: Revision, changed: set[str], renamed: Mapping[Path, Path]) -> None:
        self._revision = revision
        self._renamed = renamed
        self._changed = changed
        self._seen: set[str] = set()
        self._used: list[str] = []

    def name_of(self, path: Path) -> str:
        """The name of a path in the repository, or "" if it is outside."""
        resolved = path.resolve()
        is_ours = resolved.is_relative_to(self._revision.root) and not resolved.is_relative_to(PACKAGE)
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
        then = _evaluated(self._text_of(self.name_of(self._renamed.get(Path(file).resolve(), Path(file)))), evaluation)
        return [name] if _code(now) != _code(then) else []

    def differing_of_used(self) -> Iterator[str]:
        """The changed files among the modules that the test's files use, directly or not."""
        while self._used:
            yield from self.differing(self._used.pop())

    def has_other_options(self, ini: Path) -> bool:
        name = self.name_of(ini)
        now, then = ((read, ini.suffix) for read in (ini.read_text(), self._text_of(name)))
        return name in self._changed and _options(*now) != _options(*then)

    def _text_of(self, name: str) -> str:
        return git.run(self._revision.root, "show", f"{self._revision.commit}:{name}").stdout


def _evaluated(text: str, evaluation: Evaluation | None) -> list[ast.stmt]:
    """The statements of a module that pytest evaluates: all, or those that a test uses; [] with a syntax error."""
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

    def is_fixture(statement: ast.stmt) -> bool:
        return any("fixture" in ast.dump(d) for d in getattr(statement, "decorator_list", []))

    named = {name: s for s in statements for name in _names_made(s) if name not in evaluation.bodies}
    wanted = [s for s in statements if not _names_made(s)]
    wanted += [s for name, s in named.items() if name == evaluation.function or is_fixture(s)]
    reached: list[ast.stmt] = []
    while wanted:
        statement = wanted.pop()
        if any(statement is known for known in reached):
            continue
        reached.append(statement)
        wanted += [named[name] for name in _names_used([statement]) if name in named]
    return [s for s in statements if any(s is known for known in reached)]


def _code(statements: Sequence[ast.stmt]) -> list[str]:
    return [ast.dump(s) for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _names_made(statement: ast.stmt) -> list[str]:
    """The names that a statement only defines, so that it counts if one is used."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _names_used(statements: Sequence[ast.stmt]) -> set[str]:
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
