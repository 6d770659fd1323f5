"""The input of a training: which batches a rank gets, and what they cost it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import DataError, DistbenchError
from pytest_distbench.worker.clock.host import HostClock
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.data import cifar10
from pytest_distbench.workloads.data.cifar10 import RECORD_BYTES
from pytest_distbench.workloads.inputs import Images, batches
from pytest_distbench.workloads.storage import Folder


def rank_of(folder: Path, rank: int = 0, world_size: int = 1) -> RankContext:
    made = make_rank()
    made.data_dir, made.rank, made.world_size = folder, rank, world_size
    return made


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """A real set of 4 + 4 records, each with its number in every pixel and as its label."""
    for file in range(2):
        content = b"".join(bytes([4 * file + i] * RECORD_BYTES) for i in range(4))
        (tmp_path / cifar10.FILES[file]).write_bytes(content)
    return tmp_path


def test_synthetic_is_one_batch_made_once() -> None:
    made = batches(make_rank(), "synthetic", batch=4, shape=(1, 5, 6))
    images, labels = next(made)

    assert (images.shape, images.dtype, labels.shape, labels.dtype) == (
        (4, 1, 5, 6), torch.float32, (4,), torch.int64,
    )  # fmt: skip
    assert next(made)[0] is images
    assert made.identity == {"data": "synthetic", "batch": 4, "shape": "1x5x6"}


@pytest.mark.parametrize("workers", [0, 2])
def test_generated_is_written_once_and_read(tmp_path: Path, workers: int) -> None:
    made = batches(rank_of(tmp_path), "generated", batch=8, samples=20, workers=workers, prefetch=3)
    images, labels = next(made)
    [file] = tmp_path.rglob("*.bin")

    assert file.stat().st_size == 20 * RECORD_BYTES
    assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 32, 32), torch.float32, torch.int64)
    assert made.identity == {
        "data": "generated", "batch": 8, "shape": "3x32x32", "storage": "local", "workers": workers, "prefetch": 3,
        "pin": False,
    }  # fmt: skip
    assert (made.ahead, made.facts["samples"]) == (3 * workers, 20)
    written = file.stat().st_mtime_ns
    next(batches(rank_of(tmp_path), "generated", batch=8, samples=20))
    assert file.stat().st_mtime_ns == written
    file.write_bytes(b"cut off")
    next(batches(rank_of(tmp_path), "generated", batch=8, samples=20))
    assert file.stat().st_size == 20 * RECORD_BYTES


def test_ranks_read_disjoint_shards_that_are_all_of_an_epoch(numbered: Path) -> None:
    seen = []
    for rank in range(2):
        mine = batches(rank_of(numbered, rank, 2), "real", batch=2, storage=numbered)
        seen.append([label for _, labels in itertools.islice(mine, 2) for label in labels.tolist()])

    assert sorted(seen[0] + seen[1]) == list(range(8))


def test_another_epoch_has_another_order(numbered: Path) -> None:
    mine = batches(rank_of(numbered), "real", batch=8, storage=numbered)
    orders = [labels.tolist() for _, labels in itertools.islice(mine, 4)]

    assert [sorted(order) for order in orders] == [list(range(8))] * 4
    assert len({tuple(order) for order in orders}) > 1


def test_an_index_leads_to_its_file_and_record(numbered: Path) -> None:
    images = Images(Folder(numbered), {cifar10.FILES[0]: 4, cifar10.FILES[1]: 4}, cifar10.SHAPE)

    assert [images[i][1] for i in range(len(images))] == list(range(8))


def test_images_are_resized_to_what_the_model_takes(numbered: Path) -> None:
    images, _ = next(batches(rank_of(numbered), "real", batch=2, shape=[3, 64, 48], storage=numbered))

    assert images.shape == (2, 3, 64, 48)


@pytest.mark.parametrize("folder", ["cifar10", cifar10.FOLDER])
def test_real_data_may_lie_in_the_folder_of_the_set_or_where_its_archive_was_unpacked(
    numbered: Path, tmp_path: Path, folder: str
) -> None:
    inside = tmp_path / folder
    inside.mkdir()
    for file in numbered.glob("*.bin"):
        file.rename(inside / file.name)

    assert len(next(batches(rank_of(tmp_path), "real", batch=8, storage=tmp_path))[1]) == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_record_fails_the_training_with_its_place(numbered: Path, workers: int) -> None:
    with (numbered / cifar10.FILES[1]).open("r+b") as file:
        file.seek(2 * RECORD_BYTES)
        file.write(bytes([10]))
    made = batches(rank_of(numbered), "real", batch=8, storage=numbered, workers=workers)

    with pytest.raises(DataError, match=r"data_batch_2.bin, record 2: wanted a label from 0 to 9, found 10"):
        next(made)


def test_a_file_that_becomes_shorter_fails_the_training(numbered: Path) -> None:
    made = batches(rank_of(numbered), "real", batch=8, storage=numbered)
    (numbered / cifar10.FILES[1]).write_bytes(bytes(3 * RECORD_BYTES + 100))

    with pytest.raises(DataError, match=r"record 3: wanted a record of 3073 bytes, found 100"):
        next(made)


def test_the_wait_for_batches_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = batches(make_rank(), "synthetic", batch=1)
    ticks = iter([1.0, 1.5, 7.0, 7.25])
    monkeypatch.setattr(HostClock, "perf_counter", lambda: next(ticks))
    next(made)
    next(made)
    monkeypatch.undo()

    assert made.waited_s == 0.75


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        ("imaginary", {}, r"batches.*kind.*'imaginary'"),
        ("synthetic", {"batch": 0}, r"batch"),
        ("synthetic", {"shape": (3, 32)}, r"shape to be \(channels, height, width\), found \(3, 32\)"),
        ("synthetic", {"shape": (3, 32, 0)}, r"shape\[2\]"),
        ("generated", {"shape": (1, 32, 32)}, r"3 channels.*'generated'"),
        ("generated", {"samples": 50_001}, r"samples"),
        ("generated", {"batch": 9, "samples": 8}, r"less than a batch of 9"),
        ("generated", {"workers": -1}, r"workers"),
        ("generated", {"prefetch": 0}, r"prefetch"),
        ("real", {}, r"wanted storage=.*--distbench-data DIR"),
        ("real", {"storage": "/nowhere"}, r"/nowhere: wanted the training set of CIFAR-10.*found no file"),
    ],
)
def test_what_cannot_be_is_refused(kind: str, wrong: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(DistbenchError, match=message):
        batches(rank_of(tmp_path), kind, **{"batch": 2, **wrong})  # type: ignore[arg-type] # that is the test
