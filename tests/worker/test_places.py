"""Which lines a rank spends its time in, recorded in this process."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pytest_distbench.records.places import BACKWARD, OUTSIDE, WAITING, LoopPlaces
from pytest_distbench.worker import places
from pytest_distbench.worker.places import PlaceRecorder, root_of, sources_below

SOURCE = """
import contextlib
import threading
import time

import torch
from torch.utils.checkpoint import checkpoint


def layer(x, w):
    return (x @ w).relu()


def forward(x, w):
    return checkpoint(layer, layer(x, w), w, use_reentrant=False)


def step(x, w):
    loss = forward(x, w).sum()
    loss.backward()
    w.grad = None


def sleep():
    time.sleep(0.02)


@contextlib.contextmanager
def guard():
    yield


def wait():
    guard()(threading.Event().wait)(0.02)


def compute():
    return sum(i * i for i in range(200_000))
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / ".git").mkdir()
    path = tmp_path / "code" / "train_it.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("train_it", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(importlib.import_module("sys").modules, "train_it", made)
    spec.loader.exec_module(made)
    return made


def recorded(module: ModuleType, function: str, *args: object, iterations: int = 4) -> LoopPlaces:
    assert module.__file__ is not None
    recorder = PlaceRecorder("step", root_of(module.__file__), lambda: None)
    recorder.start()
    for _ in range(iterations):
        with recorder.iteration("step"):
            getattr(module, function)(*args)
    recorder.stop()
    return recorder.places()


def test_operators_belong_to_lines_and_those_of_the_backward_pass_to_the_line_of_their_forward_pass(
    module: ModuleType,
) -> None:
    x, w = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    found = recorded(module, "step", x, w)
    calls: Counter[tuple[str, int, str, str]] = Counter()
    for spot in found.spots:
        calls[*(spot.stack[0] if spot.stack else OUTSIDE), spot.what] += round(spot.calls)
    matmul = ("code/train_it.py", line_of("x @ w"), "layer")

    # of the forward pass two, and one that the checkpoint computes again
    assert calls[*matmul, "aten::mm"] == 3
    assert calls[*matmul, f"aten::mm ({BACKWARD})"] == 3  # the gradient of x is not asked for
    assert calls["code/train_it.py", line_of("forward(x, w).sum"), "step", "aten::sum"] == 1
    callers = {spot.stack[1][2] for spot in found.spots if spot.what == "aten::mm"}
    assert callers == {"forward", "step"}  # the backward pass calls the checkpoint's second time
    assert found.iterations == 4
    assert found.wall_s > found.iteration_s > 0


@pytest.mark.parametrize("function", ["sleep", "compute"])
def test_time_without_operators_is_sampled(module: ModuleType, function: str) -> None:
    found = recorded(module, function)
    longest = max(found.spots, key=lambda spot: spot.time_s)

    assert longest.stack[-1][2] == function
    assert longest.what == "Python"
    assert longest.calls == 0
    assert longest.time_s > found.iteration_s / 2


def test_a_library_that_waits_does_so_under_whatever_wraps_it(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_WAITS", ("threading.py",))
    found = recorded(module, "wait")

    assert max(found.spots, key=lambda spot: spot.time_s).what == f"{WAITING}Event.wait"


def test_the_repository_of_a_file_is_the_folder_with_git_and_has_the_lines_of_its_modules(module: ModuleType) -> None:
    assert module.__file__ is not None
    root = root_of(module.__file__)

    assert Path(root, "code", "train_it.py") == Path(module.__file__)
    assert sources_below(root)["code/train_it.py"] == SOURCE.splitlines()
    assert not any(name.endswith("test_places.py") for name in sources_below(root))
