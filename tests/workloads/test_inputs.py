"""The input of a training, and where its files lie."""

from __future__ import annotations

import errno
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fsspec.registry import known_implementations
from support.object_store import serve
from support.projects import EXIT_USAGE, TEST, Project, run
from support.ranks import make_rank

from pytest_distbench.errors import DataError, DistbenchError, RecordingError
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads import inputs
from pytest_distbench.workloads.data import cifar10, why_no_store
from pytest_distbench.workloads.data.cifar10 import RECORD_BYTES
from pytest_distbench.workloads.inputs import Folder, Images, ObjectStore, batches, storage_at


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from serve(monkeypatch)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind in turn."""
    return str(tmp_path) if request.param == "folder" else request.getfixturevalue("bucket")


def test_what_was_written_is_there_and_read_in_parts(place: str) -> None:
    folder = storage_at(place).below("a").below("b")
    assert folder.sizes() == {}
    folder.write("x.bin", b"first")
    folder.write("x.bin", b"0123456789")
    folder.write("y.bin", b"")

    assert folder.sizes() == {"x.bin": 10, "y.bin": 0}
    assert folder.read("x.bin", 2, 3) == b"234"
    assert folder.read("x.bin", 8, 5) == b"89", "what there is"
    assert storage_at(place).below("a").sizes() == {}, "folders are no files"
    assert pickle.loads(pickle.dumps(folder)).read("x.bin", 0, 2) == b"01"


def test_what_is_not_there_is_an_error(place: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage_at(place).read("nothing", 0, 1)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = Folder(tmp_path)
    folder.write("x", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", no_room)
        with pytest.raises(OSError, match="No space left"):
            folder.write("x", b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert folder.read("x", 0, 9) == b"old"


@pytest.mark.parametrize(
    ("file_system", "kind"),
    [
        ("ext4", "local"), ("tmpfs", "local"), ("overlay", "local"), ("fuseblk", "local"),
        ("nfs4", "network"), ("lustre", "network"), ("fuse.s3fs", "network"), ("fuse", "network"),
    ],
)  # fmt: skip
def test_a_folder_is_of_the_kind_of_the_innermost_mount_it_lies_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file_system: str, kind: str
) -> None:
    """The later one of two mounts at one place counts."""
    inner, other = (f"{tmp_path}/data/inner", "proc"), (f"{tmp_path}/da", "sysfs")
    mounts = [("/", "ext4"), (f"{tmp_path}", "autofs"), (f"{tmp_path}", file_system), inner, other]
    found = [SimpleNamespace(mountpoint=point, fstype=name) for point, name in mounts]
    monkeypatch.setattr(inputs.psutil, "disk_partitions", lambda **_: found)
    folder = storage_at(tmp_path / "data" / "not-there-yet")

    assert (folder.kind, folder.file_system) == (kind, file_system)


def test_a_url_is_an_object_store_that_something_has_to_open() -> None:
    found = storage_at("s3://bucket/prefix/")
    assert isinstance(found, ObjectStore)
    assert (found.kind, found.file_system, found.below("x").where) == ("object", "s3", "s3://bucket/prefix/x")

    with pytest.raises(RecordingError, match=r"^carrier-pigeon://loft: .*install pytest-distbench\[storage\]"):
        storage_at("carrier-pigeon://loft").sizes()


def test_an_object_store_that_cannot_be_reached_is_an_error_with_its_place(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(bucket)

    class Unreachable:
        def invalidate_cache(self) -> None: ...

        def ls(self, *_: object, **__: object) -> None:
            raise ConnectionRefusedError("Could not connect to the endpoint URL")

        cat_file = pipe_file = ls

    monkeypatch.setattr(store, "_open", lambda: (Unreachable(), "data"))
    for use, what in (
        (store.sizes, "list its files"),
        (lambda: store.read("x", 0, 1), "read x"),
        (lambda: store.write("x", b""), "write x"),
    ):
        with pytest.raises(RecordingError, match=rf"^s3://data: cannot {what}: .*endpoint URL.*; does its endpoint"):
            use()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://bucket", ""),
        ("memory://a", ""),
        ("s4://bucket", "no store is known by s4://; for s3:// install pytest-distbench[storage], "),
        ("nobodys://bucket", "nobodys:// needs the package of_nobody; for s3:// install "),
    ],
)
def test_a_url_is_refused_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch, url: str, why: str) -> None:
    monkeypatch.setitem(known_implementations, "nobodys", {"class": "of_nobody.Store"})
    told = why_no_store(url)

    assert told.startswith(why)
    assert bool(told) == bool(why)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_out_of_an_object_store(bucket: str, workers: int) -> None:
    """Its workers are forked from a process that is connected already: each has to connect itself."""
    made = batches(make_rank(), "generated", batch=4, samples=8, workers=workers, storage=f"{bucket}/images")
    images, labels = next(made)

    assert (images.shape, labels.shape) == ((4, 3, 32, 32), (4,))
    assert (made.identity["storage"], made.facts["file_system"]) == ("object", "s3")
    assert len(ObjectStore(f"{bucket}/images/cifar-10-batches-bin-generated-8-seed-0").sizes()) == 1


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


def test_ranks_read_disjoint_shards_in_an_order_of_the_epoch(numbered: Path) -> None:
    seen = []
    for rank in range(2):
        mine = batches(rank_of(numbered, rank, 2), "real", batch=2, storage=numbered)
        seen.append([label for _, labels in itertools.islice(mine, 2) for label in labels.tolist()])

    assert sorted(seen[0] + seen[1]) == list(range(8))

    mine = batches(rank_of(numbered), "real", batch=8, storage=numbered)
    orders = [labels.tolist() for _, labels in itertools.islice(mine, 4)]
    assert [sorted(order) for order in orders] == [list(range(8))] * 4
    assert len({tuple(order) for order in orders}) > 1

    images = Images(Folder(numbered), {cifar10.FILES[0]: 4, cifar10.FILES[1]: 4}, cifar10.SHAPE)
    assert [images[i][1] for i in range(len(images))] == list(range(8))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_record_fails_the_training_with_its_place(numbered: Path, workers: int) -> None:
    with (numbered / cifar10.FILES[1]).open("r+b") as file:
        file.seek(2 * RECORD_BYTES)
        file.write(bytes([10]))
    made = batches(rank_of(numbered), "real", batch=8, storage=numbered, workers=workers)

    with pytest.raises(DataError, match=r"data_batch_2.bin, record 2: wanted a label from 0 to 9, found 10"):
        next(made)


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


def test_synthetic_is_one_batch_made_once() -> None:
    made = batches(make_rank(), "synthetic", batch=4, shape=(1, 5, 6))
    images, labels = next(made)

    assert (images.shape, images.dtype, labels.shape, labels.dtype) == (
        (4, 1, 5, 6), torch.float32, (4,), torch.int64,
    )  # fmt: skip
    assert next(made)[0] is images
    assert made.identity == {"data": "synthetic", "batch": 4, "shape": "1x5x6"}


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


def test_the_wait_for_batches_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = batches(make_rank(), "synthetic", batch=1)
    ticks = iter([1.0, 1.5, 7.0, 7.25])
    monkeypatch.setattr(HostClock, "perf_counter", lambda: next(ticks))
    next(made)
    next(made)
    monkeypatch.undo()

    assert made.waited_s == 0.75


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--distbench-data=nowhere", "there is no folder */nowhere; give one, or a URL*"),
        ("--distbench-data=s4://bucket", ": s4://bucket: no store is known by s4://; for s3://*"),
        ("--distbench-data=", "is empty: is the variable it comes from set?*"),
    ],
)
def test_a_place_without_data_is_a_usage_error_that_names_the_option(project: Project, option: str, text: str) -> None:
    result = run(project(TEST), option)

    result.stderr.fnmatch_lines([f"*--distbench-data*{text}"])
    assert result.ret == EXIT_USAGE
