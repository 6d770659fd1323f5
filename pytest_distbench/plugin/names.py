"""What a case is called: its test, and the id between the brackets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

BACKEND_ARGUMENT = "distbench_backend"
"""Parametrized where a run has several backends."""

RANKS = pytest.StashKey[int]()
"""Ranks of a test that is not parametrized by them."""


_INSTALLED = "site-packages"
_LONGEST_ID = 80


def id_of_variables(value: object) -> str | None:
    """Variables as a part of a test's id: ``NCCL_ALGO=Ring,NCCL_PROTO=LL``.

    None: pytest's own is to stand there; also of long ones, and of secrets.
    """
    from pytest_distbench.machine.secrets import is_secret_name  # late: few tests are parametrized so

    if not isinstance(value, Mapping) or any(map(is_secret_name, map(str, value))):
        return None
    text = ",".join(f"{name}={inner}" for name, inner in value.items())
    return text if 0 < len(text) <= _LONGEST_ID else None


def full_name(item: pytest.Item) -> str:
    """A test's node id, with the path of its file from the root directory where that lies outside.

    pytest's own has the path from whichever argument leads there, so that two tests may have the same.
    """
    root = item.config.rootpath
    if item.path.is_relative_to(root):
        return item.nodeid
    path = Path(os.path.relpath(item.path, root))
    if _INSTALLED in path.parts:  # wherever this environment lies
        path = Path("..", *path.parts[path.parts.index(_INSTALLED) :])
    return f"{path.as_posix()}::{item.nodeid.partition('::')[2]}"


def family_of(item: pytest.Item, case_id: str) -> str:
    """The id of a case without its world size: the same for all sizes that its test runs with."""
    callspec = getattr(item, "callspec", None)
    size = item.stash.get(RANKS, None) or (callspec.params.get("world_size") if callspec is not None else None)
    parts = case_id.split("-")
    if (part := f"ws{size}") in parts:
        parts.remove(part)
    return "-".join(parts)


def test_and_id(item: pytest.Item) -> tuple[str, str]:
    """A test's name taken apart: ``("suites/test_a.py::test_b", "ws4")``. Brackets in folders and ids do not matter.

    Of a run with several backends the id has the backend at its end; the id of a case has not. The id of a test that is
    not parametrized by its ranks has them all the same: what is stored for one size is no baseline for another.
    """
    callspec = getattr(item, "callspec", None)
    case_id = getattr(callspec, "id", None)
    ranks = [f"ws{item.stash[RANKS]}"] if RANKS in item.stash else []
    name = full_name(item)
    if case_id is None or not name.endswith(f"[{case_id}]"):
        return name, "".join(ranks)
    test = name.removesuffix(f"[{case_id}]")
    if ranks:
        return test, "-".join([case_id, *ranks])
    backend = callspec.params.get(BACKEND_ARGUMENT, "") if callspec is not None else ""
    return test, case_id.removesuffix(backend).removesuffix("-") if backend else case_id
