"""HostClock: what a body puts in the place of Python's clocks stands still for the body alone."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.ranks import make_rank

from pytest_distbench.worker.clock import host

ROOMS = [Path(host.__file__).parents[2] / room for room in ("worker", "workloads")]
APART = {Path(host.__file__), ROOMS[0] / "site" / "sitecustomize.py"}
"""Where it is, and what runs without the package."""
NAMES = [name for name in vars(host.HostClock) if not name.startswith("__")]


def of_the_module(patch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        patch.setattr(time, name, lambda: 0)


def wherever_it_is_found(patch: pytest.MonkeyPatch) -> None:
    """As freezegun does: by identity, among the attributes of the package's modules, and of Python's."""
    real = {id(getattr(time, name)) for name in NAMES}
    ours = [module for name, module in sys.modules.items() if name.startswith("pytest_distbench")]
    for module in (time, *ours):
        for name, value in list(vars(module).items()):
            if id(value) in real:
                patch.setattr(module, name, lambda: 0)


def backwards(patch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        patch.setattr(time, name, _negative(getattr(time, name)))


def _negative(clock: Callable[[], float]) -> Callable[[], float]:
    return lambda: -clock()


@pytest.mark.parametrize("replace", [of_the_module, wherever_it_is_found, backwards])
@pytest.mark.parametrize("mode", ["per-iteration", "batch"])
def test_a_loop_is_timed_by_the_time_that_passes(
    monkeypatch: pytest.MonkeyPatch, replace: Callable[[pytest.MonkeyPatch], None], mode: str
) -> None:
    rank = make_rank()
    with monkeypatch.context() as patch:
        replace(patch)
        for _ in rank.timed("step", warmup=1, iterations=3, mode=mode):  # type: ignore[arg-type]
            time.sleep(0.002)
    [found] = rank.notebook.observations

    assert min(found.values) >= 0.002


def test_no_other_module_of_a_rank_asks_pythons_clocks() -> None:
    asking = [
        f"{path.name}:{node.lineno}"
        for room in ROOMS
        for path in room.rglob("*.py")
        if path not in APART
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"time.{name}" for name in NAMES}
    ]

    assert asking == []
