"""How a rank can import a body, and what reaches it as parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_distbench.errors import BodyError
from pytest_distbench.plugin.locate import json_able, locate, locate_module
from pytest_distbench.records.work import BodyReference


def body(rank: object) -> None:
    """At module level."""


async def never_runs(rank: object) -> None:
    """Calling it makes a coroutine."""


def yields(rank: object) -> Iterator[int]:
    """Calling it makes a generator."""
    yield 1


class Bodies:
    """Holds one."""

    @staticmethod
    def inner(rank: object) -> None:
        """In a class."""

    @classmethod
    def of_class(cls, rank: object) -> None:
        """Bound to its class."""

    def of_object(self, rank: object) -> None:
        """Bound to an object."""


class Inherited(Bodies):
    """Has the methods of another."""


def test_a_function_is_named_by_its_file_and_its_name() -> None:
    reference = locate(body, beside=Path())

    assert (reference.file, reference.function, reference.module) == (__file__, "body", __name__)
    assert reference.is_rewritten
    assert locate(Bodies.inner, beside=Path()).function == "Bodies.inner"
    assert locate(Inherited.of_class, beside=Path()).function == "Inherited.of_class"


def test_a_method_is_handed_over_with_what_its_object_has_as_far_as_json_holds_it() -> None:
    made = Inherited()
    vars(made).update(rate=0.1, folder=Path("/a"), model=object())
    reference = locate(made.of_object, beside=Path())

    assert (reference.file, reference.function) == (__file__, "Inherited.of_object")
    assert reference.instance == {"rate": 0.1, "folder": "/a"}
    assert reference.left_out == ["model"]


def test_a_module_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "made_up_package"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "train.py", "inner/__init__.py", "inner/__main__.py"):
        (package / file).write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert locate_module("made_up_package.train") == BodyReference(
        file=f"{package}/train.py", module="made_up_package.train"
    )
    assert locate_module("made_up_package.inner").file == f"{package}/inner/__main__.py"


def test_a_module_is_looked_for_where_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "made_up_beside.py").touch()

    assert locate_module("made_up_beside", str(tmp_path)).file == f"{tmp_path}/made_up_beside.py"
    with pytest.raises(BodyError, match="there is no such module"):
        locate_module("made_up_beside")


@pytest.mark.parametrize("name", ["made_up_nowhere", "json.nowhere", "json", "a b", "", 3])
def test_a_module_that_cannot_be_run_is_refused(name: object) -> None:
    with pytest.raises(BodyError, match="module="):
        locate_module(name)


def test_a_text_is_a_file_beside_the_test_with_or_without_a_function(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    whole = locate("train.py", beside=tmp_path)

    assert (whole.file, whole.function) == (f"{tmp_path}/train.py", "")
    assert whole.is_script
    assert locate(tmp_path / "train.py", beside=Path("/")).file == f"{tmp_path}/train.py"
    assert locate("train.py::main", beside=tmp_path).function == "main"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.py", "there is no file"),
        ("x" * 5000, "there is no file"),
        (42, "is a int; wanted a function at module level"),
        (len, "wanted a function at module level"),
        (lambda rank: None, "is defined inside a function"),
        (never_runs, "body never_runs is a coroutine or generator function, of which a call runs nothing"),
        (yields, "body yields is a coroutine or generator function"),
    ],
)
def test_what_ranks_cannot_import_is_refused(given: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(BodyError, match=said):
        locate(given, beside=tmp_path)
    with pytest.raises(BodyError, match=r"^train "):
        locate(given, beside=tmp_path, argument="train")


def test_parameters_arrive_as_json_has_them() -> None:
    assert json_able({"sizes": (1, 2), "at": {"x": None}}) == {"sizes": [1, 2], "at": {"x": None}}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({1: "a"}, "the key 1 is no text"),
        ({"x": {1: "a"}}, r"params\['x'\]: the key 1 is no text"),
        ({"x": [{"y": ({None: 1},)}]}, r"params\['x'\]: the key None is no text"),
        ({"x": {1, 2}}, r"params\['x'\] is not JSON-able"),
        ({"x": [float("inf")]}, r"params\['x'\] is not JSON-able"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(params: dict[str, object], said: str) -> None:
    with pytest.raises(BodyError, match=said):
        json_able(params)
