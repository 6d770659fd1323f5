"""Where the files of a data set lie: on a disk of this host, on a network mount, or in an object store."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil

from pytest_distbench.errors import RecordingError, tell

StorageKind = Literal["local", "network", "object"]

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "beegfs", "ceph", "glusterfs", "gpfs", "lustre", "virtiofs"}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuseblk"}
"""Of file systems outside of the kernel those that are known to lie on a disk; s3fs, sshfs and their like do not."""

_TO_INSTALL = "for s3:// install pytest-distbench[storage], for others the package of fsspec that knows them"


class Storage(Protocol):
    """A folder of files, the same to all processes that read it: it can be taken to another one.

    Attributes:
        where: as it was given.
        kind: a disk of this host (memory counts as one), a mount, or an object store.
        file_system: what the system, or the URL, calls it: ``ext4``, ``nfs4``, ``s3``.
    """

    where: str
    kind: StorageKind
    file_system: str

    def below(self, name: str) -> Storage:
        """The folder of that name in it, which need not exist."""

    def sizes(self) -> dict[str, int]:
        """Bytes of each file in it, by name; none where there is no such folder."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """So many bytes of a file; fewer where it ends before."""

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file. Who reads meanwhile sees the old one, or the new one, as a whole."""


class Folder:
    """A folder that this host has mounted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.where = str(path)
        self.file_system = _file_system(path)
        is_fuse = self.file_system.startswith("fuse") and self.file_system not in _LOCAL_FUSE
        self.kind: StorageKind = "network" if is_fuse or self.file_system in _NETWORK else "local"

    def below(self, name: str) -> Folder:
        return Folder(self._path / name)

    def sizes(self) -> dict[str, int]:
        if not self._path.is_dir():
            return {}
        return {path.name: path.stat().st_size for path in self._path.iterdir() if path.is_file()}

    def read(self, name: str, start: int, length: int) -> bytes:
        with (self._path / name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, start)

    def write(self, name: str, content: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._path, prefix=f".{name}-") as folder:
            whole = Path(folder, name)
            whole.write_bytes(content)
            whole.replace(self._path / name)


class ObjectStore:
    """A prefix in an object store, by its URL: ``s3://bucket/prefix``. A read asks for its bytes alone.

    Its connections belong to the process that made them: a worker of a loader, which is forked, makes its own.
    Endpoint and credentials are those that the store's library finds, of S3 in ``AWS_ENDPOINT_URL`` and ``AWS_*``.
    """

    kind: StorageKind = "object"

    def __init__(self, url: str) -> None:
        self.where = url.rstrip("/")
        self.file_system = url.partition("://")[0]

    def below(self, name: str) -> ObjectStore:
        return ObjectStore(f"{self.where}/{name}")

    def sizes(self) -> dict[str, int]:
        system, root = self._open()
        system.invalidate_cache()  # another rank may have written since
        try:
            with self._telling("list its files"):
                entries = system.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries if entry["type"] == "file"}

    def read(self, name: str, start: int, length: int) -> bytes:
        system, root = self._open()
        with self._telling(f"read {name}"):
            return bytes(system.cat_file(f"{root}/{name}", start=start, end=start + length))

    def write(self, name: str, content: bytes) -> None:
        system, root = self._open()
        with self._telling(f"write {name}"):
            system.pipe_file(f"{root}/{name}", content)

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Say of what and where an error of the store is; a file that is not there stays one.

        Raises:
            RecordingError: the store cannot be reached, or refuses.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 each store has a library with exceptions of its own
            raise RecordingError(
                f"{self.where}: cannot {what}: {tell(error)}; does its endpoint answer from here, and do the "
                "credentials fit? Of s3:// they are in AWS_ENDPOINT_URL, AWS_PROFILE, AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from None

    def _open(self) -> tuple[Any, str]:
        """The file system of this process, of which fsspec keeps one, and the path in it.

        Raises:
            RecordingError: there is no library for such a URL, or it lacks something.
        """
        try:
            from fsspec.core import url_to_fs

            system, root = url_to_fs(self.where)
        except (ImportError, ValueError) as error:
            raise RecordingError(f"{self.where}: {error}; {_TO_INSTALL}") from None
        return system, str(root)


def why_no_store(url: str) -> str:
    """Why no library here can open a URL, in a clause with the next step. Empty: one can, or may.

    Imports none of them, and connects to nothing.
    """
    from fsspec.registry import known_implementations, registry

    scheme = url.partition("://")[0]
    if scheme in registry:
        return ""
    if scheme not in known_implementations:
        return f"no store is known by {scheme}://; {_TO_INSTALL}"
    package = known_implementations[scheme]["class"].partition(".")[0]
    return "" if find_spec(package) is not None else f"{scheme}:// needs the package {package}; {_TO_INSTALL}"


def storage_at(place: str | os.PathLike[str]) -> Storage:
    """What lies at a path, or at a URL of an object store."""
    text = os.fspath(place)
    return ObjectStore(text) if "://" in text else Folder(Path(text).absolute())


def _file_system(path: Path) -> str:
    """Of the mount that a path lies on, which need not exist yet; empty where the system does not tell."""
    real = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
