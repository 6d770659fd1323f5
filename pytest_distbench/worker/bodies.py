"""Import of a body in a rank, by module or file, with pytest's assertion rewriting where pytest has rewritten it."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_distbench.errors import BodyError, ForeignModuleError
from pytest_distbench.extensions import EXTENSIONS
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Task
from pytest_distbench.releases import GENERATED_MODULE, installed_folder, is_installed_here

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def load(body: BodyReference) -> Callable[[RankContext], object]:
    """Import a body; exceptions of its module are raised as they are."""
    found: object = _module(body)
    given = f" (given at {body.given_at})" if body.given_at else ""
    *owners, name = body.function.split(".")
    for i, part in enumerate([*owners, name]):
        if part is name and body.instance is not None and isinstance(found, type):
            found = _make_object(found, body)
        if not hasattr(found, part):
            owner = ".".join(owners[:i])
            missing = f"::{owner} is a {type(found).__name__} without {part!r}" if owner else f" has no {part!r}"
            raise BodyError(
                f"{body.file}{missing}; a body is a function at module level or a method of what is there{given}"
            )
        found = getattr(found, part)
    if body.called_by:
        module, _, name = body.called_by.partition(":")
        call_with = getattr(importlib.import_module(module), name)
        return lambda rank: call_with(rank, found)
    if not callable(found):
        raise BodyError(f"{body.file}::{body.function} is a {type(found).__name__}, not a function{given}")
    return found


def call(body: Callable[..., object], rank: RankContext) -> None:
    """Call a body with the ``params`` that it names, and the rank as its remaining parameter.

    Raises:
        unittest.SkipTest: the body is marked as skipped, as unittest's decorators do.
    """
    if getattr(body, "__unittest_skip__", False):
        raise unittest.SkipTest(getattr(body, "__unittest_skip_why__", ""))
    try:
        parameters = list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError):  # Python does not know
        parameters = [inspect.Parameter("rank", inspect.Parameter.POSITIONAL_ONLY)]
    named = {p.name: rank.params[p.name] for p in parameters if p.name in rank.params and p.kind in _BY_NAME}
    left = [p for p in parameters if p.name not in named and p.kind is not inspect.Parameter.VAR_KEYWORD]
    wanted = [p for p in left if p.default is p.empty] or left[:1]
    if len(wanted) > 1 and wanted[1].kind is not inspect.Parameter.VAR_POSITIONAL:
        raise BodyError(
            f"the body wants {', '.join(p.name for p in wanted[1:])} besides {wanted[0].name}, which is the rank; "
            f"params= has {', '.join(rank.params) or 'nothing'}"
        )
    if not wanted and "rank" in named:
        raise BodyError("params= has 'rank', which is what the body calls the rank: give one of them another name")
    if wanted and wanted[0].kind in _BY_NAME:
        named[wanted[0].name] = rank
        wanted = []
    check_ran(body(*[rank] * bool(wanted), **named))


def check_ran(returned: object) -> None:
    """Raise BodyError if the call of a body ran nothing: a coroutine or generator function only returns an object."""
    if inspect.isawaitable(returned) or inspect.isasyncgen(returned) or inspect.isgenerator(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns that nobody awaited it
        raise BodyError(
            f"the body returned a {type(returned).__name__}, so nothing of it has run; wanted a plain function, "
            "without async and yield: call asyncio.run in it where it needs to"
        )


def check_origin(plan: LaunchPlan) -> None:
    """Raise ForeignModuleError if a module comes from another tree than this group's: both sides would run that code.

    An import hook of an editable install may lead to the working tree whatever sys.path says, and a copy may be
    installed.
    """
    if not plan.tree:
        return
    allowed = [Path(plan.tree).resolve(), Path(__file__).resolve().parents[1]]
    known = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not os.path.isabs(file) or name == GENERATED_MODULE:
            continue
        package = name.partition(".")[0]
        place = package, installed_folder(file) or (file if os.path.islink(file) else os.path.dirname(file))
        if place in known:
            continue  # to look at each of torch's two thousand modules takes longer than a whole launch
        known.add(place)
        path = Path(file).resolve()
        if is_installed_here(str(path)) or not any(map(path.is_relative_to, [*allowed, Path(plan.foreign_tree)])):
            _check_no_copy(name, file, plan.tree, ours=allowed[-1])
        if not path.is_relative_to(plan.foreign_tree):
            continue
        if (
            any(map(path.is_relative_to, allowed))
            or Path(file).is_relative_to(plan.tree)  # linked there: distbench_against_link
            or is_installed_here(str(path))
            or is_installed_here(file)
        ):
            continue
        raise ForeignModuleError(
            f"module {name} was imported from {file}, in the working tree, by the group that measures another "
            "revision; does an import hook lead there? Put the folder of its package on sys.path instead: pythonpath = "
            "src in the ini file, or pythonpath = ."
        )


_TRAINS = re.compile(
    r"optim|compile|dynamo|parallel|fsdp|fully_shard|ddp|distributed\.tensor|dtensor|checkpoint|importlib|__import__|runpy|exec",
    re.IGNORECASE,
)
"""Pattern of names in code that uses torch beyond tensors, modules and collectives, or that imports dynamically."""
_NO_TRAINING = {*sys.stdlib_module_names, "msgspec", "numpy", "psutil", "pytest", "torch"}
_OURS = __name__.partition(".")[0]


def may_train(plan: LaunchPlan) -> bool:
    """Whether ranks may step an optimizer, by the source of their body and its imports; True if one is unknown."""
    return not isinstance(plan.work, Task) or _may_train(plan.work.body.file, tuple(plan.python_path))


@functools.cache  # launches of one body follow each other
def _may_train(file: str, python_path: Sequence[str]) -> bool:
    waiting, known = [Path(file)], set[Path]()
    while waiting:
        if (path := waiting.pop()) in known:
            continue
        known.add(path)
        try:
            tree = ast.parse(path.read_text())
        except (OSError, SyntaxError, ValueError):
            return True
        if any(map(_TRAINS.search, _names(tree))):
            return True
        for module, names in _imported(tree):
            package, _, inside = module.partition(".")
            if package in _NO_TRAINING or (package == _OURS and inside.partition(".")[0] not in EXTENSIONS):
                continue
            search = [str(path.parent), *python_path, str(Path(__file__).parents[2])]
            found, *more = (_file_of(name, search) for name in (module, *names))
            if found is None or (package != _OURS and is_installed_here(str(found))):
                return True
            waiting += [found, *filter(None, more)]
    return False


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                yield name


def _imported(tree: ast.AST) -> Iterator[tuple[str, Sequence[str]]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, ()) for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module, [f"{module}.{alias.name}" for alias in names]
            case ast.ImportFrom():
                yield "", ()


def _file_of(name: str, search: Sequence[str]) -> Path | None:
    path = name.replace(".", "/")
    places = (Path(folder, f"{path}{ending}") for folder in search for ending in (".py", "/__init__.py"))
    return next((place for place in places if path and place.is_file()), None)


def compute(rank: RankContext) -> None:
    """Body that runs before the first test under ``--gpu``, to check that the driver can run torch's kernels."""
    import torch

    assert torch.ones(1, device=rank.device).item() == 1


_PACKAGES = (".", "src", "lib", "python")


@functools.cache
def _package_in(tree: Path, name: str) -> Path | None:
    projects = [tree, *(file.parent for depth in ("*", "*/*") for file in tree.glob(f"{depth}/pyproject.toml"))]
    places = (project / folder / name for project in projects for folder in _PACKAGES)
    return next((place for place in places if (place / "__init__.py").is_file()), None)


def _check_no_copy(name: str, file: str, tree: str, *, ours: Path) -> None:
    top = name.partition(".")[0]
    if top in (*sys.stdlib_module_names, ours.name) or Path(file).is_relative_to(tree):
        return
    found = _package_in(Path(tree), top)
    if found is not None:
        raise ForeignModuleError(
            f"module {name} was imported from {file}, a copy of the package {top} that the repository has in "
            f"{found.relative_to(tree)}: both sides would run the copy, and none its own code. Install it in place: "
            "pip install -e ."
        )


def _module(body: BodyReference) -> ModuleType:
    """Import a body's module under the name that pytest uses if that leads to the same file, else load the file."""
    path = Path(body.file)
    name = body.module or path.stem
    is_found = False
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        known = importlib.util.find_spec(name) if body.module else None  # which imports the packages above it
        is_found = known is not None and known.origin is not None and Path(known.origin).resolve() == path.resolve()
    if is_found and (name in sys.modules or not body.is_rewritten):
        return importlib.import_module(name)
    loader = _RewritingLoader(name, str(path)) if body.is_rewritten else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None or not path.is_file():
        raise BodyError(f"{body.file} is not a Python file that can be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules.pop(name, None)  # torch may have loaded another of this name, and older ones are none of the user's
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _make_object(owner: type, body: BodyReference) -> object:
    """An object of a method's class, with the attributes sent to this process. ``__init__`` is not called."""
    left_out = frozenset(body.left_out)

    def explain(self: object, name: str) -> object:
        where = f"{owner.__name__} has no attribute {name!r}"
        if name in left_out:
            where += ": what the test put there is not JSON, so it cannot be handed to a rank; make it in the body"
        raise AttributeError(where, name=name, obj=self)

    missing = {} if hasattr(owner, "__getattr__") else {"__getattr__": explain}
    made: object = object.__new__(type(owner.__name__, (owner,), {**missing, "__module__": owner.__module__}))
    if isinstance(made, unittest.TestCase):
        unittest.TestCase.__init__(made, body.function.rpartition(".")[2])  # its assertions need it
    vars(made).update(body.instance or {})
    return made


class _RewritingLoader(SourceFileLoader):
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
            _explain_comparisons()
        return compile(tree, path, "exec", dont_inherit=True)


def _explain_comparisons() -> None:
    from _pytest.assertion import pytest_assertrepr_compare, util

    defaults: Any = SimpleNamespace(  # pytest's own hook wants a configuration
        get_verbosity=lambda kind=None: 0,
        getini={"assertion_text_diff_style": "ndiff"}.get,
        get_terminal_writer=lambda: SimpleNamespace(_highlight=lambda source, lexer="python": source),
        pluginmanager=SimpleNamespace(has_plugin=lambda name: False),
    )

    def explain(operation: str, left: object, right: object) -> str | None:
        with contextlib.suppress(Exception):
            lines = list(pytest_assertrepr_compare(defaults, operation, left, right) or [])
            return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%") or None
        return None

    util._reprcompare = explain
