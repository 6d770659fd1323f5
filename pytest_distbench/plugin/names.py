"""What a case is called: its test, and the id between the brackets."""

from __future__ import annotations

import pytest

BACKEND_ARGUMENT = "distbench_backend"
"""Parametrized where a run has several backends."""


def test_and_id(item: pytest.Item) -> tuple[str, str]:
    """A node id taken apart: ``("suites/test_a.py::test_b", "ws4")``. Brackets in folders and ids do not matter.

    Of a run with several backends the id has the backend at its end; the id of a case has not.
    """
    callspec = getattr(item, "callspec", None)
    case_id = getattr(callspec, "id", None)
    if case_id is None or not item.nodeid.endswith(f"[{case_id}]"):
        return item.nodeid, ""
    test = item.nodeid.removesuffix(f"[{case_id}]")
    backend = callspec.params.get(BACKEND_ARGUMENT, "") if callspec is not None else ""
    return test, case_id.removesuffix(backend).removesuffix("-") if backend else case_id
