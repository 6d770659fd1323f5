"""Find a body again inside a rank: import its module, or its file, and look its name up.

A module whose assertions pytest has rewritten gets the same rewriting here: a failing assert explains itself.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from pytest_distbench.errors import BodyError
from pytest_distbench.records import BodyReference

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def load(reference: BodyReference) -> Callable[[RankContext], object]:
    """Import a body.

    Raises:
        BodyError: the file or the name is not there, or what the name stands for cannot be called.
        Exception: whatever the module raises while it is imported.
    """
    found: object = _module(reference)
    for part in reference.function.split("."):
        if not hasattr(found, part):
            raise BodyError(
                f"{reference.file} has no {reference.function!r}: the body must be a function at module level"
            )
        found = getattr(found, part)
    if not callable(found):
        raise BodyError(f"{reference.file}::{reference.function} is a {type(found).__name__}, not a function")
    return found


def _module(reference: BodyReference) -> ModuleType:
    """The module by the name pytest knows, if that leads to the same file; else the file under that name."""
    path = Path(reference.file)
    name = reference.module or path.stem
    is_found = bool(reference.module) and _leads_to(name, path)  # which imports the packages above it
    if is_found and (name in sys.modules or not reference.is_rewritten):
        return importlib.import_module(name)
    loader = _RewritingLoader(name, str(path)) if reference.is_rewritten else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None or not path.is_file():
        raise BodyError(f"{reference.file} is not a Python file that can be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _RewritingLoader(SourceFileLoader):
    """Loads a file with pytest's assertion rewriting, past the byte-code cache."""

    def get_code(self, fullname: str) -> CodeType | None:
        del fullname
        path = self.get_filename()
        source = self.get_data(path)
        tree = ast.parse(source, filename=path)
        with contextlib.suppress(Exception):  # not part of pytest's public interface: without it asserts stay plain
            from _pytest.assertion.rewrite import rewrite_asserts

            rewritten = ast.parse(source, filename=path)
            rewrite_asserts(rewritten, source, path)
            tree = rewritten
        return compile(tree, path, "exec", dont_inherit=True)


def _leads_to(name: str, path: Path) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path.resolve()
