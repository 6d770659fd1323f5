"""Test and case id, out of what pytest calls an item."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.plugin.names import RANKS, full_name, id_of_variables
from pytest_distbench.plugin.names import test_and_id as take_apart


def make_item(nodeid: str, path: str = "/p/a.py", **more: Any) -> Any:
    config = SimpleNamespace(rootpath=Path("/p"))
    return SimpleNamespace(nodeid=nodeid, path=Path(path), config=config, **{"stash": {}, **more})


@pytest.mark.parametrize(
    ("nodeid", "path", "name"),
    [
        ("tests/a.py::T::t[x]", "/p/tests/a.py", "tests/a.py::T::t[x]"),
        ("tests/a.py::T::t[x]", "/q/tests/a.py", "../q/tests/a.py::T::t[x]"),
        ("::t", "/q/tests/a.py", "../q/tests/a.py::t"),
        ("a.py::t", "/anywhere/lib/site-packages/mine/a.py", "../site-packages/mine/a.py::t"),
    ],
)
def test_a_test_outside_the_root_directory_is_known_by_its_path(nodeid: str, path: str, name: str) -> None:
    assert full_name(make_item(nodeid, path)) == name


@pytest.mark.parametrize(
    ("nodeid", "callspec", "found"),
    [
        ("a.py::t", None, ("a.py::t", "")),
        ("a.py::t[x-ws2]", {"id": "x-ws2", "params": {}}, ("a.py::t", "x-ws2")),
        ("a.py::t[x-ws2-mpi]", {"id": "x-ws2-mpi", "params": {"distbench_backend": "mpi"}}, ("a.py::t", "x-ws2")),
        ("a.py::t[mpi]", {"id": "mpi", "params": {"distbench_backend": "mpi"}}, ("a.py::t", "")),
    ],
)
def test_a_node_id_is_taken_apart(nodeid: str, callspec: dict[str, Any] | None, found: tuple[str, str]) -> None:
    item = make_item(nodeid)
    if callspec is not None:
        item.callspec = SimpleNamespace(**callspec)

    assert take_apart(item) == found


@pytest.mark.parametrize(("nodeid", "case_id", "found"), [("a.py::t", None, "ws4"), ("a.py::t[x]", "x", "x-ws4")])
def test_the_id_of_what_is_not_parametrized_by_its_ranks_has_them(nodeid: str, case_id: str | None, found: str) -> None:
    item = make_item(nodeid, stash={RANKS: 4}, callspec=SimpleNamespace(id=case_id, params={}))

    assert take_apart(item) == ("a.py::t", found)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, "NCCL_ALGO=Ring,NCCL_PROTO=LL"),
        ({}, None),
        ("NCCL_ALGO=Ring", None),
        ({"LONG": "x" * 80}, None),
        ({"HF_TOKEN": "hf_abcdefgh", "NCCL_ALGO": "Ring"}, None),
    ],
)
def test_variables_are_a_part_of_an_id_unless_they_are_long_or_secret(value: object, found: str | None) -> None:
    assert id_of_variables(value) == found
