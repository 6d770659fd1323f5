"""How a rank can import a body, and what reaches it as parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_distbench.errors import BodyError
from pytest_distbench.plugin.locate import json_able, locate


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


def test_a_function_is_named_by_its_file_and_its_name() -> None:
    reference = locate(body, beside=Path(), args=())

    assert (reference.file, reference.function, reference.module) == (__file__, "body", __name__)
    assert reference.is_rewritten
    assert locate(Bodies.inner, beside=Path(), args=()).function == "Bodies.inner"


def test_a_text_is_a_file_beside_the_test_with_or_without_a_function(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    whole = locate("train.py", beside=tmp_path, args=["--n", "3"])

    assert (whole.file, whole.function, whole.arguments) == (f"{tmp_path}/train.py", "", ["--n", "3"])
    assert locate("train.py::main", beside=tmp_path, args=()).function == "main"


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
        locate(given, beside=tmp_path, args=())


def test_parameters_arrive_as_json_has_them() -> None:
    assert json_able({"sizes": (1, 2), "at": {"x": None}}) == {"sizes": [1, 2], "at": {"x": None}}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({1: "a"}, "the key 1 is no text"),
        ({"x": {1, 2}}, r"params\['x'\] is not JSON-able"),
        ({"x": [float("inf")]}, r"params\['x'\] is not JSON-able"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(params: dict[str, object], said: str) -> None:
    with pytest.raises(BodyError, match=said):
        json_able(params)
