"""Which lines made the tensors that are alive at the peak of a rank's memory, recorded in this process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_distbench.records.places import BACKWARD, OUTSIDE, Spot
from pytest_distbench.worker.peaks import TensorPeak, spots_at_peak

KIB = 2**10
SOURCE = """
import torch


def make(kib):
    return torch.ones(kib * 256)


def grow(x):
    y = x + 1
    return y * 2


def changed(x):
    x.add_(1)
    return x[:10]


def backward(x, w):
    loss = (x @ w).sum()
    loss.backward()
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    (tmp_path / ".git").mkdir()
    path = tmp_path / "train_it.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("train_it", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def recorder(tmp_path: Path) -> TensorPeak:
    return TensorPeak(str(tmp_path))


def held(peak: list[Spot]) -> dict[tuple[int, str], tuple[float, float]]:
    """Tensors and KiB, by line and what made them."""
    return {
        ((spot.stack[0] if spot.stack else OUTSIDE)[1], spot.what): (spot.calls, spot.amount / KIB) for spot in peak
    }


def test_what_is_alive_at_the_peak_is_held_by_the_line_that_made_it(module: ModuleType, recorder: TensorPeak) -> None:
    with recorder:
        module.make(300)  # gone before
        kept = [module.make(100) for _ in range(3)]
        grown = module.grow(kept[0])  # the sum is gone after
        del kept, grown
        module.make(350)
    peak = recorder.peaks()["peak_memory"]

    assert held(peak) == {
        (line_of("torch.ones"), "aten::ones"): (3, 300),
        (line_of("x + 1"), "aten::add"): (1, 100),
        (line_of("y * 2"), "aten::mul"): (1, 100),
    }


def test_what_is_older_is_not_made_by_a_line_that_changes_or_views_it(module: ModuleType, recorder: TensorPeak) -> None:
    older = torch.ones(1000)
    with recorder:
        kept = module.changed(older)
    peak = recorder.peaks()["peak_memory"]

    assert len(kept) == 10
    assert peak == []


def test_gradients_belong_to_the_line_of_the_forward_pass(module: ModuleType, recorder: TensorPeak) -> None:
    x, w = torch.ones(4, 256), torch.ones(256, 256, requires_grad=True)
    with recorder:
        module.backward(x, w)
    peak = recorder.peaks()["peak_memory"]

    assert held(peak)[line_of("x @ w"), f"aten::mm ({BACKWARD})"] == (1, 256)


@pytest.mark.parametrize(("later", "whole"), [(50, 300), (400, 400)])
def test_the_second_peak_is_of_what_is_alive_from_then_on(
    module: ModuleType, recorder: TensorPeak, later: int, whole: int
) -> None:
    with recorder:
        kept = module.make(20)
        module.make(280)
        recorder.begin_second()
        module.make(later)
    peaks = {metric: sum(spot.amount for spot in peak) / KIB for metric, peak in recorder.peaks().items()}

    assert len(kept)
    assert peaks == {"peak_memory": max(whole, later + 20), "peak_memory[from_update=3]": later + 20}


def test_an_allocators_history_has_what_is_alive_at_its_peak(tmp_path: Path) -> None:
    """In the form of torch.cuda.memory's snapshot: ``segment`` entries are the driver's, what is older is unknown."""

    def event(action: str, addr: int, size: int, *lines: tuple[str, int, str]) -> dict[str, Any]:
        frames = [{"filename": file, "line": line, "name": name} for file, line, name in lines]
        return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames}

    step, model = (f"{tmp_path}/train.py", 9, "step"), (f"{tmp_path}/model.py", 4, "forward")
    linear = ("/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 125, "forward")
    history = [
        event("free_completed", 1, 8),
        event("segment_alloc", 2, 2**21),
        event("alloc", 2, 512, step),
        event("free_requested", 2, 512, step),
        event("free_completed", 2, 512, step),
        event("alloc", 2, 256, linear, model, step),
        event("alloc", 3, 128, linear, model, step),
        event("alloc", 4, 1024, step),
        event("alloc", 5, 64),
        event("free_requested", 4, 1024, step),
        event("alloc", 6, 900, step),
    ]
    found = {
        (spot.what, *(place[1] for place in spot.stack)): (spot.calls, spot.amount)
        for spot in spots_at_peak(history, str(tmp_path))
    }

    assert found == {("forward", 4, 9): (2, 384), ("Python", 9): (1, 1024), ("no line",): (1, 64)}
    assert spots_at_peak(history[:7], str(tmp_path))[0].stack[0] == ("train.py", 9, "step")
    assert spots_at_peak([], str(tmp_path)) == []
