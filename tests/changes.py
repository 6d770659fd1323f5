"""Conditional tests, and whether something that they import has changed since a revision.

    python tests/changes.py REF

A test is conditional where it is costly and covers a part of the package that most changes leave alone: see
``CONDITIONAL``. It runs where nobody knows what has changed. A file imports what its import statements name, wherever
they stand, and what its texts name as a file or a module of this repository, as for a script that a test starts.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from pytest_distbench.extensions import EXTENSIONS

ROOT = Path(__file__).parent.parent
PACKAGE = "pytest_distbench"
CONDITIONAL = {
    "tests/elastic/end_to_end/": "elastic",
    "tests/workloads/end_to_end/test_report_trainings.py": "workloads",
    "tests/workloads/end_to_end/test_translations.py": "workloads",
}
"""The beginning of the names of test files, and the extension whose fixtures and tables they use."""
ALWAYS = ("tests/conftest.py", "conftest.py")
"""Core of the package, which pytest loads for each test together with the plugin."""
IMPORT_ROOTS = ("", "tests/", "benchmarks/", "suites/training/", "suites/structure/")
"""Folders that modules are imported from: ``pythonpath`` in pyproject.toml."""
READ_BY_NO_TEST_OF_THEM = re.compile(r"(docs|baselines|findings|\.github)/|[^/]+\.md$|LICENSE$")
"""Files that conditional tests do not read. Any other that is no Python file may change all of them."""
_MODULE = re.compile(r"\bpytest_distbench(?:\.\w+)+")
_FILE = re.compile(r"[\w/]+\.py\b")


def changed_since(ref: str, root: Path = ROOT) -> set[str] | None:
    """Files that differ between the merge base of a revision with HEAD and the working tree, untracked ones included.

    None if that is unknown: there is no such revision, no common commit, or no git; or HEAD is the revision itself with
    nothing changed, as on a branch that was just pushed.
    """
    base = _git(root, "merge-base", ref, "HEAD")
    if base is None:
        return None
    differ = _git(root, "diff", "--name-only", "--no-renames", base.strip())
    untracked = _git(root, "ls-files", "--others", "--exclude-standard")
    if differ is None or untracked is None:
        return None
    return {*differ.splitlines(), *untracked.splitlines()} or None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout


class Imports:
    """Which files of a repository import which, from their text alone; ``files`` are relative to its root."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self._root = root
        self.files = frozenset(files)
        self._by_name: dict[str, list[str]] = {}
        for file in self.files:
            self._by_name.setdefault(PurePosixPath(file).name, []).append(file)
        self.of = cache(self._of)

    def closure(self, files: Iterable[str]) -> set[str]:
        """Files that some files import, directly or by others; with themselves."""
        found, waiting = set[str](), [*files]
        while waiting:
            if (file := waiting.pop()) not in found and file in self.files:
                found.add(file)
                waiting += self.of(file)
        return found

    def _of(self, file: str) -> frozenset[str]:
        tree = ast.parse((self._root / file).read_text())
        return frozenset(found for node in ast.walk(tree) for found in self._named(node))

    def _named(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from self._module(alias.name)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    yield from self._module(f"{module}.{alias.name}")
            case ast.Constant(value=str(text)):
                for name in _MODULE.findall(text):
                    yield from self._module(name)
                for path in _FILE.findall(text):
                    named = self._by_name.get(PurePosixPath(path).name, ())
                    yield from (file for file in named if f"/{file}".endswith(f"/{path.lstrip('/')}"))

    def _module(self, name: str) -> Iterator[str]:
        """The file of a module or of the module that a name is in, and those of its packages."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = "/".join(parts[:count])
            for root in IMPORT_ROOTS:
                yield from self.files & {f"{root}{path}.py", f"{root}{path}/__init__.py"}


def decide(changed: set[str] | None, imports: Imports) -> dict[str, str]:
    """Why the files of each row of ``CONDITIONAL`` run; "" if they need not."""
    if changed is None:
        return dict.fromkeys(CONDITIONAL, "nobody knows what has changed")
    found = {}
    for begin, extension in CONDITIONAL.items():
        needed = imports.closure([*ALWAYS, *(file for file in imports.files if _is_root(file, begin, extension))])
        found[begin] = next((f"{file} has changed" for file in sorted(changed) if _counts(file, needed)), "")
    return found


def _is_root(file: str, begin: str, extension: str) -> bool:
    """Whether it is one of the tests, or of the package without its other extensions."""
    package, _, path = file.partition("/")
    room = path.partition("/")[0]
    return file.startswith(begin) or (package == PACKAGE and (room == extension or room not in EXTENSIONS))


def _counts(file: str, needed: set[str]) -> bool:
    return file in needed or (not file.endswith(".py") and not READ_BY_NO_TEST_OF_THEM.match(file))


def decide_since(ref: str) -> dict[str, str]:
    listed = _git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.py") or ""
    return decide(changed_since(ref), Imports(ROOT, (file for file in listed.splitlines() if (ROOT / file).is_file())))


def left_out(ref: str) -> dict[str, str]:
    """Why the files of rows of ``CONDITIONAL`` are skipped; those that run are left out."""
    text = f"not run: nothing that it imports has changed since the merge base with {ref}; make nightly runs it"
    return {begin: text for begin, reason in decide_since(ref).items() if not reason}


def main(ref: str) -> None:
    for begin, reason in decide_since(ref).items():
        print(f"{begin}: {f'runs: {reason}' if reason else 'is left out'}")


if __name__ == "__main__":
    main(sys.argv[1])
