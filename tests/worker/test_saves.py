"""What a watch says of what is saved, inside this process."""

from __future__ import annotations

import io
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_distbench.records.trained import NOT_A_TENSOR, UPDATES
from pytest_distbench.worker import saves
from pytest_distbench.worker.saves import SaveWatch


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SaveWatch]:
    monkeypatch.chdir(tmp_path)
    made = SaveWatch(world_size=1, folder=tmp_path / "work", updates=lambda: 12, is_clocked=lambda: False)
    made.begin()
    yield made
    made.end()


def test_a_file_has_its_tensors_and_numbers_as_they_were_saved_last(watch: SaveWatch, tmp_path: Path) -> None:
    Path("out").mkdir()
    net = torch.nn.Linear(2, 1)
    for scale in (1.0, 2.0):
        state = {name: tensor * scale for name, tensor in net.state_dict().items()}
        torch.save({"model": state, "epoch": 3, "name": "a text", "deep": [{"x": 1.5}]}, tmp_path / "out" / "ckpt.pt")
    norms = {name.removeprefix("out/ckpt.pt: "): state.norm for name, state in watch.saved.items()}

    assert norms.keys() == {"model.weight", "model.bias", "epoch", "deep.0.x", UPDATES}
    assert norms["model.weight"] == pytest.approx(2 * float(net.weight.detach().norm()), rel=1e-5)
    assert (norms["epoch"], norms[UPDATES]) == (3, 12)
    assert torch.load("out/ckpt.pt")["epoch"] == 3


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("model.pt", "model.pt"),
        ("work/a/model.pt", "a/model.pt"),
        ("run_20261129-053812/model.pt", "run_*/model.pt"),
        ("2026-11-29_05-38-12.pt", "*.pt"),
        ("ckpt-1764394692.pt", "ckpt-*.pt"),
        ("log_05-38-12.pt", "log_*.pt"),
        ("step=39_loss=0.42885998.pt", "step=39_loss=*.pt"),
        ("v1.5.pt", "v1.5.pt"),
        ("step_1000.pt", "step_1000.pt"),
        ("iter00000120.pt", "iter00000120.pt"),
    ],
)
def test_a_name_has_no_time_and_no_folder_of_the_launch(watch: SaveWatch, path: str, name: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.ones(2), path)

    assert set(watch.saved) == {f"{name}: ", f"{name}: {UPDATES}"}


def test_elsewhere_and_in_memory(watch: SaveWatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch.save(torch.ones(2), tmp_path_factory.mktemp("elsewhere") / "far.pt")
    torch.save(torch.ones(2), io.BytesIO())
    with open("open.pt", "wb") as file:
        torch.save(torch.ones(2), file)

    assert {name.partition(":")[0] for name in watch.saved} == {"far.pt", "bytes", "open.pt"}


@dataclass
class State:
    step: int
    rng_state: Any


class Odd(dict):  # type: ignore[type-arg]
    """Cannot be gone through."""

    def items(self) -> Any:
        raise RuntimeError("no")

    def __reduce__(self) -> Any:
        return dict, ()


def test_random_states_and_long_lists_of_numbers_are_left_out(watch: SaveWatch) -> None:
    torch.save(
        {
            "state": State(7, torch.get_rng_state()),
            "python": random.getstate(),
            "mask": torch.ones(3, dtype=torch.uint8),
        },
        "a.pt",
    )
    assert {name.removeprefix("a.pt: ") for name in watch.saved} == {"state.step", "python.0", "mask", UPDATES}


def test_an_object_with_a_state_is_its_state(watch: SaveWatch) -> None:
    net = torch.nn.Linear(2, 1)
    torch.save({"net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.5)}, "a.pt")

    assert {"a.pt: net.weight", "a.pt: optimizer.param_groups.0.lr"} <= watch.saved.keys()
    assert watch.saved["a.pt: optimizer.param_groups.0.lr"].form == NOT_A_TENSOR


def test_what_cannot_be_looked_through_is_saved_all_the_same(watch: SaveWatch) -> None:
    torch.save(Odd(a=1), "a.pt")

    assert watch.remarks == {"something that was saved could not be read: RuntimeError": None}
    assert torch.load("a.pt", weights_only=False) == {}


def test_threads_and_timed_loops_are_remarked(tmp_path: Path, watch: SaveWatch) -> None:
    thread = threading.Thread(target=torch.save, args=(torch.ones(2), tmp_path / "a.pt"))
    thread.start()
    thread.join()
    watch.end()
    clocked = SaveWatch(world_size=1, folder=tmp_path, updates=lambda: 0, is_clocked=lambda: True)
    clocked.begin()
    torch.save(torch.ones(2), tmp_path / "b.pt")
    clocked.end()

    assert (watch.saved, clocked.saved) == ({}, {})
    assert list(watch.remarks) == ["what threads saved was not read"]
    assert list(clocked.remarks) == ["what was saved in a timed loop was not read"]


def test_of_more_than_the_most_one_tensor_in_eight_is_read(
    watch: SaveWatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(saves, "WHOLE_BYTES", 8)
    small = SaveWatch(world_size=1, folder=tmp_path, updates=lambda: 0, is_clocked=lambda: False)
    watch.end()
    small.begin()
    torch.save({f"w{i}": torch.full((2,), float(i)) for i in range(17)}, "a.pt")
    small.end()

    read = {name for name, state in small.saved.items() if state.digest and UPDATES not in name}
    assert read == {"a.pt: w0", "a.pt: w8", "a.pt: w16"}
    assert small.saved["a.pt: w5"].form == "float32 2"
    assert "one tensor in 8" in next(iter(small.remarks))


def test_a_checkpoint_of_torchs_own_is_seen_at_its_writer(watch: SaveWatch, tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": {"w": torch.ones(3)}, "step": 4}, checkpoint_id=tmp_path / "dcp", no_dist=True)

    assert watch.saved["dcp: model.w"].norm == pytest.approx(3**0.5, rel=1e-4)
    assert set(watch.saved) == {"dcp: model.w", f"dcp: {UPDATES}"}


@pytest.fixture
def fake_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package safetensors that nobody has imported, and whose ``save_file`` returns 5."""
    package = tmp_path / "site" / "safetensors"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text("def save_file(tensors, filename, metadata=None): return 5\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in ("safetensors.torch", "safetensors"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("fake_safetensors")
def test_safetensors_is_watched_as_soon_as_it_is_imported(watch: SaveWatch) -> None:
    from safetensors.torch import save_file

    assert save_file({"w": torch.ones(4)}, filename="m.safetensors") == 5
    assert watch.saved["m.safetensors: w"].norm == 2.0
    watch.end()
    save_file({"other": torch.ones(4)}, "n.safetensors")
    assert "n.safetensors: other" not in watch.saved


def test_what_is_shared_is_gone_through_once_and_times_and_long_histories_are_left_out(watch: SaveWatch) -> None:
    shared: dict[str, object] = {"w": 1.5}
    for _ in range(40):
        shared = dict.fromkeys("abcd", shared)
    history = {f"row{i}": float(i) for i in range(5000)}
    torch.save({"shared": shared, "elapsed_minutes": 0.02, "epochs": 3, "z": torch.ones(2), "history": history}, "a.pt")

    assert len(watch.saved) < 1100
    assert {"a.pt: epochs", "a.pt: z"} <= watch.saved.keys()
    assert "a.pt: elapsed_minutes" not in watch.saved
