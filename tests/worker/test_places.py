"""Which lines a rank spends its time in, recorded in this process."""

from __future__ import annotations

import importlib.util
import os
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.places import BACKWARD, DATA, OUTSIDE, WAITING, LoopPlaces, RankPlaces
from pytest_distbench.worker import places
from pytest_distbench.worker.clock import Delay
from pytest_distbench.worker.clock.clocks import HostStopwatch
from pytest_distbench.worker.places import PlaceRecorder, root_of, sources_below
from pytest_distbench.worker.profiler import Profiler

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


class Rows(torch.utils.data.Dataset):
    factor = 1

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.2)  # it decodes
        return self.factor * torch.ones(1)


def double(worker):
    torch.utils.data.get_worker_info().dataset.factor = 2


def load(batches):
    assert next(batches).tolist() == [[2.0]]


def first_batch(loader):
    return next(iter(loader))
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / ".git").mkdir()
    path = tmp_path / "code" / "train_it.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(path.parent))  # a process that is spawned imports it
    spec = importlib.util.spec_from_file_location("train_it", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(importlib.import_module("sys").modules, "train_it", made)
    spec.loader.exec_module(made)
    return made


def recorded(module: ModuleType, function: str, *args: object) -> LoopPlaces:
    """What four iterations do, which synchronize in this process alone."""
    assert module.__file__ is not None
    process = os.getpid()

    def synchronize() -> None:
        assert os.getpid() == process

    recorder = PlaceRecorder("step", root_of(module.__file__), synchronize)
    recorder.start()
    for _ in range(4):
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
    longest = max(found.spots, key=lambda spot: spot.amount)

    assert longest.stack[-1][2] == function
    assert longest.what == "Python"
    assert longest.calls == 0
    assert longest.amount > found.iteration_s / 2


def test_a_library_that_waits_does_so_under_whatever_wraps_it(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_WAITS", ("threading.py",))
    found = recorded(module, "wait")

    assert max(found.spots, key=lambda spot: spot.amount).what == f"{WAITING}Event.wait"


class OwnIteration(DataLoader[Any]):
    """Starts its workers itself, as torchdata's StatefulDataLoader does."""

    def __iter__(self) -> Any:
        return self._get_iterator()


@pytest.mark.parametrize(("method", "loader"), [("fork", DataLoader), ("spawn", DataLoader), ("fork", OwnIteration)])
def test_waiting_for_data_is_at_the_lines_of_the_workers(
    module: ModuleType, tmp_path: Path, method: str, loader: type[DataLoader[Any]]
) -> None:
    profiler = Profiler(
        files=LaunchFiles(tmp_path), rank=0, is_whole=False, root=str(tmp_path), is_on_device=False,
        synchronize=lambda: None, barrier=lambda: None, in_loop=lambda: True,
    )  # fmt: skip
    watch = profiler.watch(HostStopwatch(Delay(0.0, time.perf_counter)), "step")
    with profiler.body():
        options = {"num_workers": 2, "prefetch_factor": 1, "worker_init_fn": module.double}
        made = loader(module.Rows(), multiprocessing_context=method, **options)
        batches = iter(made)
        for _ in range(4):  # more than are loaded ahead
            next(batches)
        for _ in range(4):
            watch.start()
            module.load(batches)
            watch.stop()
    assert made.worker_init_fn is module.double
    [found] = msgspec.json.decode(profiler.files.places(0).read_bytes(), type=RankPlaces).loops
    decodes = ("code/train_it.py", line_of("it decodes"), "Rows.__getitem__")
    [decoding] = [spot for spot in found.spots if spot.stack[:1] == [decodes]]

    assert [name for _, _, name in decoding.stack] == ["Rows.__getitem__", "load"]
    assert decoding.what == DATA
    assert min(spot.amount for spot in found.spots) > -1e-6  # two workers do not explain more than was waited


def test_a_worker_that_is_forked_in_an_iteration_records_no_operators(module: ModuleType) -> None:
    found = recorded(module, "first_batch", DataLoader(module.Rows(), num_workers=1, multiprocessing_context="fork"))

    assert not [spot for spot in found.spots if any(name == "Rows.__getitem__" for _, _, name in spot.stack)]


def test_the_repository_of_a_file_is_the_folder_with_git_and_has_the_lines_of_its_modules(module: ModuleType) -> None:
    assert module.__file__ is not None
    root = root_of(module.__file__)

    assert Path(root, "code", "train_it.py") == Path(module.__file__)
    assert sources_below(root)["code/train_it.py"] == SOURCE.splitlines()
    assert not any(name.endswith("test_places.py") for name in sources_below(root))
