"""Where files lie: folders, and a real server that speaks S3."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fsspec.registry import known_implementations
from support.object_store import serve
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads import storage
from pytest_distbench.workloads.inputs import batches
from pytest_distbench.workloads.storage import Folder, ObjectStore, storage_at, why_no_store


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
    def fill(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = Folder(tmp_path)
    folder.write("x", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill)
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
    mounts = {"/": "ext4", str(tmp_path): file_system, f"{tmp_path}/data/inner": "proc", f"{tmp_path}/da": "sysfs"}
    found = [SimpleNamespace(mountpoint=point, fstype=name) for point, name in mounts.items()]
    monkeypatch.setattr(storage.psutil, "disk_partitions", lambda **_: found)
    folder = storage_at(tmp_path / "data" / "not-there-yet")

    assert (folder.kind, folder.file_system) == (kind, file_system)


def test_of_two_mounts_at_one_place_the_later_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [SimpleNamespace(mountpoint=str(tmp_path), fstype=name) for name in ("autofs", "nfs4")]
    monkeypatch.setattr(storage.psutil, "disk_partitions", lambda **_: found)

    assert Folder(tmp_path).file_system == "nfs4"


def test_a_url_is_an_object_store_without_looking_at_it() -> None:
    found = storage_at("s3://bucket/prefix/")

    assert isinstance(found, ObjectStore)
    assert (found.kind, found.file_system, found.below("x").where) == ("object", "s3", "s3://bucket/prefix/x")


def test_a_url_that_nothing_can_open_says_what_to_install() -> None:
    with pytest.raises(RecordingError, match=r"^carrier-pigeon://loft: .*install pytest-distbench\[storage\]"):
        storage_at("carrier-pigeon://loft").sizes()


def test_a_store_that_cannot_be_reached_is_told_with_its_place_and_what_to_look_at(
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
