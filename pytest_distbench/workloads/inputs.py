"""The input of a training: batches that exist already, or that are read, decoded and augmented while it runs.

tf_cnn_benchmarks trains on one random batch if it is given no folder of data, and so separates what a training can do
from what its input lets it do. Here that is the kind ``synthetic``; ``generated`` and ``real`` go through files: on a
disk of this host, on a network mount, or in an object store.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import psutil
import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch.utils.data import DataLoader, Dataset

from pytest_distbench.errors import RecordingError, error_text
from pytest_distbench.records.metric import Scalar
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.notebook import check_choice, check_whole, refuse
from pytest_distbench.workloads.data import TO_INSTALL, cifar10, written_whole
from pytest_distbench.workloads.training import sharded_batches

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


StorageKind = Literal["local", "network", "object"]

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "beegfs", "ceph", "glusterfs", "gpfs", "lustre", "virtiofs"}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuseblk"}
"""File systems outside of the kernel that are known to lie on a disk; s3fs, sshfs and their like do not."""


class Folder:
    """A folder of files that this host has mounted, the same for all processes that read it.

    Attributes:
        where: path or URL as the user gave it.
        kind: a disk of this host (memory counts as one), a network mount, or an object store.
        file_system: name of the file system, or scheme of the URL: ``ext4``, ``nfs4``, ``s3``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.where = str(path)
        real = path.resolve()  # which need not exist yet
        mounts = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
        own = max(reversed(mounts), key=lambda mount: len(mount.mountpoint), default=None)
        self.file_system = "" if own is None else own.fstype
        is_fuse = self.file_system.startswith("fuse") and self.file_system not in _LOCAL_FUSE
        self.kind: StorageKind = "network" if is_fuse or self.file_system in _NETWORK else "local"

    def below(self, name: str) -> Folder:
        """Return the folder of that name in it, which need not exist."""
        return Folder(self._path / name)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file in it, by name; {} if there is no such folder."""
        if not self._path.is_dir():
            return {}
        return {path.name: path.stat().st_size for path in self._path.iterdir() if path.is_file()}

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read at most ``length`` bytes of a file, from ``start`` on; fewer if it ends before."""
        with (self._path / name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, start)

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file. Readers see the old one, or the new one, as a whole."""
        self._path.mkdir(parents=True, exist_ok=True)
        with written_whole(self._path / name) as file:
            file.write(content)


class ObjectStore:
    """A prefix in an object store, by its URL: ``s3://bucket/prefix``. A read requests its bytes alone.

    Its connections belong to the process that made them: a worker of a loader, which is forked, makes its own. Endpoint
    and credentials are those that the store's library finds, for S3 in ``AWS_ENDPOINT_URL`` and ``AWS_*``.
    """

    def __init__(self, url: str) -> None:
        self.kind: StorageKind = "object"
        self.where = url.rstrip("/")
        self.file_system = url.partition("://")[0]

    def below(self, name: str) -> ObjectStore:
        return ObjectStore(f"{self.where}/{name}")

    def sizes(self) -> dict[str, int]:
        system, root = self._open()
        system.invalidate_cache()  # another rank may have written since
        try:
            with self._naming_errors("list its files"):
                listed = system.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        return {one["name"].rpartition("/")[2]: one["size"] for one in listed if one["type"] == "file"}

    def read(self, name: str, start: int, length: int) -> bytes:
        system, root = self._open()
        with self._naming_errors(f"read {name}"):
            return bytes(system.cat_file(f"{root}/{name}", start=start, end=start + length))

    def write(self, name: str, content: bytes) -> None:
        system, root = self._open()
        with self._naming_errors(f"write {name}"):
            system.pipe_file(f"{root}/{name}", content)

    @contextlib.contextmanager
    def _naming_errors(self, what: str) -> Iterator[None]:
        """Add the action and the place to an error of the store; a missing file stays FileNotFoundError.

        Raises:
            RecordingError: the store cannot be reached, or refuses.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 each store has a library with exceptions of its own
            raise RecordingError(
                f"{self.where}: cannot {what}: {error_text(error)}; does its endpoint answer from here, and do the "
                "credentials fit? Of s3:// they are in AWS_ENDPOINT_URL, AWS_PROFILE, AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from None

    def _open(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs

            system, root = url_to_fs(self.where)
        except (ImportError, ValueError) as error:
            raise RecordingError(f"{self.where}: {error}; {TO_INSTALL}") from None
        return system, str(root)


Storage = Folder | ObjectStore


def storage_at(place: str | os.PathLike[str]) -> Storage:
    """The storage at a path, or at a URL of an object store."""
    text = os.fspath(place)
    return ObjectStore(text) if "://" in text else Folder(Path(text).absolute())


Kind = Literal["real", "generated", "synthetic"]

_CALL = "batches(...)"


class Images(Dataset[tuple[torch.Tensor, int]]):
    """The images of a CIFAR-10 training set: each is read, decoded, augmented and resized when it is indexed."""

    def __init__(self, storage: Storage, counts: dict[str, int], shape: Sequence[int]) -> None:
        self._storage = storage
        self._names = list(counts)
        self._ends = list(itertools.accumulate(counts.values()))
        self._size = tuple(shape[1:])

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file = bisect.bisect(self._ends, index)
        record = index - (self._ends[file - 1] if file else 0)
        name = self._names[file]
        content = self._storage.read(name, record * cifar10.RECORD_BYTES, cifar10.RECORD_BYTES)
        image, label = cifar10.decode(content, f"{self._storage.where}/{name}, record {record}")
        found = cifar10.augment(image)
        if self._size != cifar10.SHAPE[1:]:
            [found] = F.interpolate(found[None], self._size, mode="bilinear", align_corners=False)
        return found, label


class Batches(Iterator[tuple[torch.Tensor, torch.Tensor]]):
    """Batches without end: images (batch, channels, height, width), float32, and labels (batch,), int64.

    Synthetic ones are on the rank's device, others on the host.

    Attributes:
        batch: samples of a batch, per rank.
        identity: what defines the input, for ``identity=`` of every number that depends on it.
        facts: what else describes the input, for ``facts=``.
        ahead: most batches that a loader may have ready in advance.
        waited_s: seconds that callers have waited for batches so far.
    """

    def __init__(
        self,
        source: Iterator[tuple[torch.Tensor, torch.Tensor]],
        *,
        batch: int,
        identity: dict[str, Scalar],
        facts: dict[str, Scalar],
        ahead: int = 0,
    ) -> None:
        self._source = source
        self.batch = batch
        self.identity = identity
        self.facts = facts
        self.ahead = ahead
        self.waited_s = 0.0

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        start = HostClock.perf_counter()
        images, labels = next(self._source)
        self.waited_s += HostClock.perf_counter() - start
        return images, labels


def batches(
    rank: RankContext,
    kind: Kind,
    *,
    batch: int,
    shape: Sequence[int] = cifar10.SHAPE,
    workers: int = 0,
    prefetch: int = 2,
    pin: bool = True,
    storage: str | os.PathLike[str] | None = None,
    samples: int = 4096,
) -> Batches:
    """The input of a training. A collective call.

    ``synthetic`` is one random batch, made once on the device. ``generated`` is a training set of random pixels in the
    format of CIFAR-10, written once and then read as ``real`` is: by a ``DataLoader`` of torch, each rank its own
    shard of every epoch (:func:`~pytest_distbench.workloads.training.sharded_batches`). ``real`` is the CIFAR-10 of
    the user. Numbers of two kinds, or of two kinds of storage, are not compared: pass :attr:`Batches.identity`.

    Args:
        rank: this process in its group; generated data is made in its ``data_dir``.
        kind: ``real``, ``generated`` or ``synthetic``, which takes nothing of what follows but batch and shape.
        batch: samples per rank.
        shape: shape of an image, (channels, height, width). Those of files have 3 channels, and are resized to it.
        workers: processes of the loader; 0: the rank itself reads.
        prefetch: batches that each of them makes ahead.
        pin: lock the pages of batches, where the device is CUDA, so that they can be copied while it computes.
        storage: a folder on a disk or a mount, or the URL of an object store, ``s3://bucket/prefix``: where real data
            lies, as ``--distbench-data`` says it, or where generated data is written, by default the run's own folder.
        samples: number of samples to generate, 1 to 50 000.

    Raises:
        RecordingError: an argument is not what is wanted.
        DataError: there is no such data, or a file of it is damaged; what is wrong in a record is raised when it is
            read.
    """
    check_choice(_CALL, "kind", kind, get_args(Kind))
    batch = check_whole(_CALL, "batch", batch, least=1)
    workers = check_whole(_CALL, "workers", workers, least=0)
    prefetch = check_whole(_CALL, "prefetch", prefetch, least=1)
    samples = check_whole(_CALL, "samples", samples, least=1, most=len(cifar10.FILES) * cifar10.FILE_RECORDS)
    if not isinstance(shape, Sequence) or len(shape) != 3:
        refuse(_CALL, "shape to be (channels, height, width)", shape)
    shape = [check_whole(_CALL, f"shape[{axis}]", size, least=1) for axis, size in enumerate(shape)]
    identity: dict[str, Scalar] = {"data": kind, "batch": batch, "shape": "x".join(map(str, shape))}
    if kind == "synthetic":
        pixels = torch.randn(batch, *shape, device=rank.device)
        labels = torch.randint(0, cifar10.CLASSES, (batch,), device=rank.device)
        return Batches(itertools.repeat((pixels, labels)), batch=batch, identity=identity, facts={})
    if shape[0] != cifar10.SHAPE[0]:
        refuse(_CALL, f"shape to have 3 channels, as the images of kind {kind!r} have", shape)
    folder = _real(storage) if kind == "real" else _generated(rank, storage, samples)
    images = Images(folder, cifar10.count_records(folder.sizes(), folder.where), shape)
    pins = pin and rank.device.type == "cuda"
    loader = DataLoader(
        images,
        batch_sampler=(
            chosen.tolist()
            for chosen in sharded_batches(rank, samples=len(images), batch=batch, drop_last=True, device="cpu")
        ),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        pin_memory=pins,
        generator=torch.Generator().manual_seed(rank.seed + rank.rank),  # ranks augment otherwise
    )
    return Batches(
        iter(loader),
        batch=batch,
        identity={**identity, "storage": folder.kind, "workers": workers, "prefetch": prefetch, "pin": pins},
        facts={"file_system": folder.file_system, "samples": len(images)},
        ahead=workers * prefetch,
    )


def _real(place: str | os.PathLike[str] | None) -> Storage:
    if not place:
        raise RecordingError(
            f"{_CALL}: wanted storage=, where the files of kind 'real' lie, found none: give --distbench-data DIR, and "
            'pass storage=rank.params["data"] with params={"data": distbench.data}'
        )
    given = storage_at(place)
    inner = [given.below(name) for name in ("cifar10", cifar10.FOLDER)]
    return next((folder for folder in inner if folder.sizes()), given)


def _generated(rank: RankContext, place: str | os.PathLike[str] | None, samples: int) -> Storage:
    folder = storage_at(place or rank.data_dir).below(f"{cifar10.FOLDER}-generated-{samples}-seed-{rank.seed}")
    if rank.local_rank == 0:
        there = folder.sizes()
        for name, content in cifar10.generate_noise(samples, rank.seed):
            if there.get(name) != len(content):
                folder.write(name, content)
    rank.barrier()
    return folder
