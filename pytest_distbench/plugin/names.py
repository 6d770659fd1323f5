"""What a case is called: its test, and the id between the brackets."""

from __future__ import annotations

import pytest

BACKEND_ARGUMENT = "distbench_backend"
"""Parametrized where a run has several backends."""

RANKS = pytest.StashKey[int]()
"""Ranks of a test that is not parametrized by them."""


def test_and_id(item: pytest.Item) -> tuple[str, str]:
    """A node id taken apart: ``("suites/test_a.py::test_b", "ws4")``. Brackets in folders and ids do not matter.

    Of a run with several backends the id has the backend at its end; the id of a case has not. The id of a test that is
    not parametrized by its ranks has them all the same: what is stored for one size is no baseline for another.
    """
    callspec = getattr(item, "callspec", None)
    case_id = getattr(callspec, "id", None)
    ranks = [f"ws{item.stash[RANKS]}"] if RANKS in item.stash else []
    if case_id is None or not item.nodeid.endswith(f"[{case_id}]"):
        return item.nodeid, "".join(ranks)
    test = item.nodeid.removesuffix(f"[{case_id}]")
    if ranks:
        return test, "-".join([case_id, *ranks])
    backend = callspec.params.get(BACKEND_ARGUMENT, "") if callspec is not None else ""
    return test, case_id.removesuffix(backend).removesuffix("-") if backend else case_id
