"""Bodies: how they are found in a rank, and what is no body."""

from __future__ import annotations

import functools
import importlib
import sys
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from support.plans import make_plan

from pytest_distbench.errors import BodyError, ForeignModuleError
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks
from pytest_distbench.releases import GENERATED_MODULE
from pytest_distbench.worker import bodies


def test_a_module_that_came_from_the_working_tree_all_the_same_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install with an import hook leads there; modules of the worktree are right, wherever it is."""
    (tmp_path / "led_astray.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("led_astray")
    astray, fine, none = (SimpleNamespace(tree=tree, foreign_tree=str(tmp_path)) for tree in ("/other", tmp_path, ""))

    with pytest.raises(ForeignModuleError, match=r"module led_astray was imported from .*led_astray\.py"):
        bodies.check_origin(cast("LaunchPlan", astray))
    bodies.check_origin(cast("LaunchPlan", fine))
    bodies.check_origin(cast("LaunchPlan", none))
    monkeypatch.delitem(sys.modules, "led_astray")


@pytest.mark.parametrize("place", ["copied_one", "src/copied_one", "packages/a/src/copied_one"])
def test_a_package_of_the_repository_that_came_from_a_copy_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """``pip install .`` makes a copy, or a folder on PYTHONPATH has one."""
    for package in (tmp_path / "site/copied_one", tmp_path / "tree" / place):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "core.py").touch()
    if place.startswith("packages"):
        (tmp_path / "tree/packages/a/pyproject.toml").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.import_module("copied_one.core")
    plan = SimpleNamespace(tree=str(tmp_path / "tree"), foreign_tree=str(tmp_path / "working"))

    with pytest.raises(ForeignModuleError, match=rf"a copy of the package copied_one .* in {place}: .*pip install -e"):
        bodies.check_origin(cast("LaunchPlan", plan))
    monkeypatch.delitem(sys.modules, "copied_one.core")
    monkeypatch.delitem(sys.modules, "copied_one")


async def coroutine() -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("body", [coroutine, generator, stream])
def test_a_body_that_has_not_run_is_an_error(body: Callable[[], object]) -> None:
    with pytest.raises(BodyError, match="so nothing of it has run; wanted a plain function"):
        bodies.check_ran(body())


@pytest.mark.parametrize(
    ("body", "params", "given"),
    [
        (lambda rank: rank, {"rate": 1}, ("rank",)),
        (lambda rank, rate: (rank, rate), {"rate": 1, "more": 2}, ("rank", 1)),
        (lambda rate, context: (context, rate), {"rate": 1}, ("rank", 1)),
        (lambda rank, rate=5: (rank, rate), {}, ("rank", 5)),
        (lambda rank, *, rate: (rank, rate), {"rate": 1}, ("rank", 1)),
        (lambda rank, /, rate: (rank, rate), {"rate": 1}, ("rank", 1)),
        (lambda *everything: everything, {"rate": 1}, ("rank",)),
        (lambda *, rate: ("none", rate), {"rate": 1}, ("none", 1)),
        (lambda: ("none",), {}, ("none",)),
        (lambda rank=None: rank, {}, ("rank",)),
    ],
)
def test_params_are_arguments_of_their_names_and_what_is_left_is_the_rank(
    body: Callable[..., object], params: dict[str, object], given: tuple[object, ...]
) -> None:
    found: list[object] = []
    rank: Any = SimpleNamespace(params=params)

    @functools.wraps(body)
    def noted(*positional: object, **named: object) -> None:
        found.append(body(*positional, **named))

    bodies.call(noted, rank)
    told = [tuple("rank" if one is rank else one for one in (f if isinstance(f, tuple) else (f,))) for f in found]
    assert told == [given]


def test_an_argument_that_nobody_gives_is_named_and_the_rank_keeps_its_place() -> None:
    rank: Any = SimpleNamespace(params={"rate": 1})

    with pytest.raises(BodyError, match="wants model, size besides rank, which is the rank; params= has rate"):
        bodies.call(lambda rank, model, size, rate: None, rank)

    rank: Any = SimpleNamespace(params={"rank": 5})

    with pytest.raises(BodyError, match="params= has 'rank', which is what the body calls the rank"):
        bodies.call(lambda rank: None, rank)


def test_a_method_s_object_has_what_could_be_handed_over_and_the_assertions_of_a_testcase(tmp_path: Path) -> None:
    file = tmp_path / "bodies_in_a_class.py"
    file.write_text("""
class Suite:
    size = 2
    def __init__(self):
        raise AssertionError
    def body(self, rank):
        assert (self.size, self.rate) == (2, 0.5)
        self.model
""")
    reference = BodyReference(file=str(file), function="Suite.body", instance={"rate": 0.5}, left_out=["model"])
    body = bodies.load(reference)

    with pytest.raises(AttributeError, match="Suite has no attribute 'model': what the test put there is not JSON"):
        body(SimpleNamespace())  # type: ignore[arg-type]

    file = tmp_path / "case_of_a_method.py"
    file.write_text("""
import unittest
class Case(unittest.TestCase):
    def body(self, rank):
        self.assertEqual([1], [1])
        with self.assertRaisesRegex(ValueError, "x"):
            raise ValueError("x")
""")

    bodies.load(BodyReference(file=str(file), function="Case.body", instance={}))(SimpleNamespace())  # type: ignore[arg-type]


def test_a_body_that_torch_s_decorators_mark_as_skipped_is_not_run() -> None:
    def body(rank: object) -> None:
        pytest.fail("ran")

    vars(body).update(__unittest_skip__=True, __unittest_skip_why__="only mpi has it")
    with pytest.raises(unittest.SkipTest, match="only mpi has it"):
        bodies.call(body, cast(Any, SimpleNamespace(params={})))


OPERATIONS = "NUMBER = 3\ndef something(): pass\nclass Some:\n    def thing(self): pass\n"


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("nothing.thing", "my_operations.py has no 'nothing'; a body is"),
        ("something.more", "my_operations.py::something is a function without 'more'; a body is"),
        ("Some.thing.more", "my_operations.py::Some.thing is a function without 'more'"),
        ("nosuch", "has no 'nosuch'; a body is a function"),
        ("NUMBER", "is a int, not a function"),
    ],
)
def test_an_invalid_body_is_an_error_with_the_line_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, text: str
) -> None:
    file = tmp_path / "my_operations.py"
    file.write_text(OPERATIONS)
    monkeypatch.setitem(sys.modules, "my_operations", ModuleType("my_operations"))  # it is put back

    with pytest.raises(BodyError, match=rf"{text}.* \(given at test_a\.py:12\)"):
        bodies.load(BodyReference(file=str(file), function=function, given_at="test_a.py:12"))


def test_a_body_in_a_file_with_a_name_that_torch_has_loaded_is_newer_than_all_of_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's end looks for open files in the newer modules."""
    (tmp_path / "profile_of_mine.py").write_text("def body(rank):\n    pass\n")
    for name in ("profile_of_mine", "loaded_later"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    bodies._module(BodyReference(file=str(tmp_path / "profile_of_mine.py"), function="body", module=""))

    assert next(reversed(sys.modules)) == "profile_of_mine"


def test_a_module_that_torch_wrote_to_a_temporary_folder_came_from_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TMPDIR is in the working tree; torch 2.8 and older write such a module in every process."""
    (tmp_path / f"{GENERATED_MODULE}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, GENERATED_MODULE, raising=False)
    importlib.import_module(GENERATED_MODULE)

    bodies.check_origin(cast("LaunchPlan", SimpleNamespace(tree="/other", foreign_tree=str(tmp_path))))
    monkeypatch.delitem(sys.modules, GENERATED_MODULE)


@pytest.mark.parametrize("returned", [None, 5, [1], iter([1])])
def test_what_else_a_body_returns_is_its_own_affair(returned: object) -> None:
    bodies.check_ran(returned)


def test_a_device_that_computes_passes_and_one_that_is_not_there_raises() -> None:
    there: Any = SimpleNamespace(device="cpu")
    bodies.compute(there)
    missing: Any = SimpleNamespace(device="cuda:99")
    with pytest.raises((AssertionError, RuntimeError)):
        bodies.compute(missing)


SWEEP = "import torch.distributed as dist\n\ndef body(rank):\n    dist.all_reduce(rank.x)\n"
TRAINING = "import torch\n\ndef step(net):\n    torch.optim.SGD(net.parameters(), lr=1).step()\n"


@pytest.mark.parametrize(
    ("body", "may_train"),
    [
        (SWEEP, False),
        (TRAINING, True),
        ("import plain\n\ndef body(rank):\n    plain.body(rank)\n", False),
        ("import training\n\ndef body(rank):\n    training.step(rank.net)\n", True),
        ("def body(rank):\n    from package import deep\n    deep.step(rank.net)\n", True),
        ("from package.flat import FLAT\n", False),
        ("from pytest_distbench import RankContext\n", False),
        ("from torch.nn.parallel import DistributedDataParallel\n", True),
        ("def body(rank):\n    import torch\n    torch.compile(rank.net)\n", True),
        ("import sklearn\n", True),
        ("import is_not_there\n", True),
        ("from . import neighbour\n", True),
        ("import importlib\n", True),
        ("def body(rank)\n", True),
    ],
)
def test_a_body_may_train_if_its_source_or_that_of_its_imports_says_so(
    body: str, may_train: bool, tmp_path: Path
) -> None:
    """What is not known may: then the parent of ranks imports for all of them what each would import for a second."""
    library = tmp_path / "library"
    (library / "package").mkdir(parents=True)
    for file, text in {
        tmp_path / "body.py": body,
        tmp_path / "plain.py": "import loops\n" + SWEEP,
        tmp_path / "loops.py": "import plain\n",
        library / "training.py": TRAINING,
        library / "package" / "__init__.py": "",
        library / "package" / "deep.py": TRAINING,
        library / "package" / "flat.py": "FLAT = 1\n",
    }.items():
        file.write_text(text)
    work = Ranks(body=BodyReference(file=str(tmp_path / "body.py"), function="body"))

    assert bodies.may_train(make_plan(tmp_path, work=work, python_path=[str(library)])) == may_train
