"""Test and case id, out of what pytest calls an item."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.plugin.names import test_and_id as take_apart


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
    item: Any = SimpleNamespace(nodeid=nodeid)
    if callspec is not None:
        item.callspec = SimpleNamespace(**callspec)

    assert take_apart(item) == found
