"""The host's clock: what a body puts in its place stands still for the body alone, and a delay makes spans longer."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.ranks import make_rank
from support.virtual_cuda import VirtualCuda

from pytest_distbench.worker import clock
from pytest_distbench.worker.clock import Delay

ROOMS = [Path(clock.__file__).parents[2] / room for room in ("worker", "workloads")]
APART = {Path(clock.__file__), ROOMS[0] / "site" / "sitecustomize.py"}
"""Where it is, and what runs without the package."""
NAMES = [name for name in vars(clock.HostClock) if not name.startswith("__")]


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
    for name, real in {name: getattr(time, name) for name in NAMES}.items():
        patch.setattr(time, name, lambda real=real: -real())


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


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> VirtualCuda:
    return VirtualCuda(monkeypatch)


def delay(share: float) -> Delay:
    return Delay(share, time.perf_counter)


@pytest.mark.parametrize("own_s", [1e-4, 1e-3, 1.0])
def test_what_is_spanned_is_longer_by_a_share_of_itself(host: VirtualCuda, own_s: float) -> None:
    planted, began = delay(0.2), host.now
    since = planted.mark()
    host.compute(own_s)
    planted.wait(since)

    assert host.now - began == pytest.approx(1.2 * own_s, abs=1e-6)
    assert planted.waited_s == pytest.approx(0.2 * own_s, abs=1e-6)


def test_what_is_apart_or_was_delayed_in_part_is_not_delayed_twice(host: VirtualCuda) -> None:
    """A step of 2 s, and an evaluation of 1 s in it that is no part of the step."""
    planted, began = delay(0.5), host.now
    step = planted.mark()
    evaluation = planted.mark()
    host.compute(1.0)
    planted.wait(evaluation, is_apart=True)
    host.compute(2.0)
    planted.wait(step, apart_s=1.5)

    assert host.now - began == pytest.approx(4.5, abs=1e-5)

    # An iteration of 3 s, 1 s of which is a phase
    planted, began = delay(0.5), host.now
    iteration = planted.mark()
    phase = planted.mark()
    host.compute(1.0)
    planted.wait(phase)
    host.compute(2.0)
    planted.wait(iteration)

    assert host.now - began == pytest.approx(4.5, abs=1e-5)
