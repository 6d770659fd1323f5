"""Two versions of a store, to be compared: the files of a folder, and the files of a git revision."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pytest_distbench import git
from pytest_distbench.errors import DistbenchError
from pytest_distbench.store.baselines import BASELINE_FILES, BaselineFile, BaselineStore
from pytest_distbench.store.changes import EntryChange, entry_change
from pytest_distbench.store.names import Choice


class Version(Protocol):
    """Files of a store at one point in time, by path below it."""

    def paths(self) -> set[str]:
        """Every ``.json`` file, with ``/``."""

    def read(self, path: str) -> bytes:
        """The content of one of them."""


class FolderVersion:
    """The store as it lies in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> set[str]:
        stores = [BaselineStore(self._folder, platform) for platform in BaselineStore(self._folder, "").platforms()]
        start = len(str(self._folder / "x")) - 1
        return {str(path)[start:] for store in stores for path in store.files()}

    def read(self, path: str) -> bytes:
        return BASELINE_FILES.read_bytes(self._folder / path)


class GitObjects:
    """The contents of a repository, by their names in git. One ``git cat-file`` serves all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, name: str, path: str) -> bytes:
        """The content; the path is for the error."""
        if self._process is None:
            command = git.command(self._folder, "cat-file", "--batch")
            self._process = subprocess.Popen(
                command, env=git.variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n".encode())
        self._process.stdin.flush()
        facts = self._process.stdout.readline().split()
        if len(facts) != 3:  # a partial clone that cannot fetch it
            raise DistbenchError(f"git has no content for {path} ({facts!r}): fetch the revision whole")
        return self._process.stdout.read(int(facts[2]) + 1)[:-1]

    def close(self) -> None:
        """End git."""
        if self._process is not None:
            self._process.communicate()


class RevisionVersion:
    """The store as it was at a git revision."""

    def __init__(self, folder: Path, revision: str) -> None:
        self._folder = folder
        commit = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if commit is None:
            raise DistbenchError(
                f"{revision!r} is neither a folder nor a git revision known in {folder}: give a branch, tag or commit "
                "(fetch it first?), or the folder of another store"
            )
        prefix = self._git("rev-parse", "--show-prefix") or ""
        tree = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}:{prefix.rstrip('/')}")
        listing = self._git("ls-tree", "-r", "-z", "--full-tree", tree) if tree else ""
        rows = [row.partition("\t") for row in (listing or "").split("\0") if row]
        self._objects = {path: facts.split()[2] for facts, _, path in rows if path.endswith(".json")}
        self._contents = GitObjects(folder)

    def paths(self) -> set[str]:
        return set(self._objects)

    def read(self, path: str) -> bytes:
        return self._contents.read(self._objects[path], path)

    def close(self) -> None:
        """End git."""
        self._contents.close()

    def _git(self, *arguments: str) -> str | None:
        """Its output; None where git says no."""
        try:
            done = git.run(self._folder, *arguments)
        except OSError as error:
            raise DistbenchError(f"cannot run git: {error.strerror or error}; diff against a folder instead") from error
        return done.stdout.removesuffix("\n") if done.returncode == 0 else None


class VersionChanges:
    """The changes between two versions, found one entry at a time.

    Attributes:
        unchanged: entries that are the same in both, as far as iterated.
    """

    def __init__(self, old: Version, new: Version, choice: Choice, *, platform: str = "") -> None:
        self._old = old
        self._new = new
        self._choice = choice
        self._platform = platform
        self.unchanged = 0

    def __iter__(self) -> Iterator[EntryChange]:
        """Every changed, new or removed entry."""
        before, after = self._old.paths(), self._new.paths()
        for path in sorted(before | after):
            if self._platform and not path.startswith(f"{self._platform}/"):
                continue
            old = self._old.read(path) if path in before else None
            new = self._new.read(path) if path in after else None
            then = _parse(old, path)
            now = then if old == new else _parse(new, path)
            known = now or then
            if known is None or not self._choice(known.name):
                continue
            change = entry_change(known.name, then.entry if then else None, now.entry if now else None)
            if change is None:
                self.unchanged += 1
            else:
                yield change


def _parse(data: bytes | None, path: str) -> BaselineFile | None:
    return None if data is None else BASELINE_FILES.parse(data, Path(path))
