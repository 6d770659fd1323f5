"""A checkpoint is whole, or known to be torn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.elastic.checkpoints import find_good, load, save


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    save(tmp_path, 20, {"model": {"w": torch.arange(3)}, "counters": {"step": 20}})

    assert find_good(tmp_path) == (20, [])
    assert load(tmp_path, 20)["model"]["w"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["step20.pt"]


def test_without_a_checkpoint_the_training_begins(tmp_path: Path) -> None:
    assert find_good(tmp_path) == (0, [])


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:40] + b"x" + data[41:]]
)
def test_a_torn_checkpoint_has_a_good_one_behind_it(tmp_path: Path, damage: object) -> None:
    save(tmp_path, 20, {"a": 1})
    save(tmp_path, 100, {"a": 2})
    newest = tmp_path / "step100.pt"
    newest.write_bytes(damage(newest.read_bytes()))  # type: ignore[operator]

    assert find_good(tmp_path) == (20, ["step100.pt"])
    with pytest.raises(RecordingError, match=r"step100\.pt is gone or not whole"):
        load(tmp_path, 100)


def test_the_newest_three_are_kept_by_their_step_not_their_name(tmp_path: Path) -> None:
    for step in (5, 20, 100, 1000):
        save(tmp_path, step, {"a": step})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["step100.pt", "step1000.pt", "step20.pt"]
