"""Baseline files, made for reading diffs and merging, and the commits that recorded what is in them.

``<folder>/<platform>/<suite path>/<test function>/<case>.json``: keys sorted, one list a line, four significant digits,
no time stamps. A file per case makes them safe without a lock: two runs, or two git branches, that record different
cases never touch the same file, and each file is replaced whole by one rename.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from pytest_distbench import git
from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.case import BaselineEntry, BaselineName, beginnings
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import metric_key, metric_name
from pytest_distbench.records.record import Record
from pytest_distbench.store.files import FileKind, lay_out, read_each

SCHEMA = 3  # version of the file format

MAX_FILE_BYTES = 16 * 2**20  # a larger file is refused before it is read, and never written

_LONGEST_NAME = 200  # bytes of one name; file systems take 255, and a draft's name is longer

_LONGEST_PATH = 2000  # bytes of the names below a platform; the kernel takes 4096 for the whole path

_ABOVE = "_above_"
"""Folder of tests outside the root directory, in place of ``..``, which would leave the baseline directory."""

_PLATFORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LIST_OF_ONE = re.compile(rb"\[\n\s+(\[[^\n]*\])\n\s*\]")


class BaselineFile(Record, frozen=True, kw_only=True):
    schema: int
    platform: str
    test: str
    key: str  # the case, for people and as the name of the file: ``float32-ws2.gloo.warm``
    entry: BaselineEntry

    @property
    def name(self) -> BaselineName:
        return BaselineName(platform=self.platform, test=self.test, key=self.key)


class Baselines:
    def __init__(self, folder: Path, platform: str) -> None:
        self.folder = folder
        self.platform = platform

    def path(self, test: str, key: str) -> Path:
        return self._place(test) / _file_name(key)

    def folder_of(self, test: str) -> Path:
        """Folder of a test's cases, whether or not it exists."""
        return self.folder / self.platform / _below_platform(test)

    def read(self, test: str, key: str) -> BaselineEntry | None:
        path = self.path(test, key)
        return self._read_of(test, path).entry if os.path.lexists(path) else None

    def of_test(self, test: str, *, test_ids: Collection[str] | None = None) -> dict[str, BaselineEntry]:
        """Baselines of a test by key. Files whose names begin with other ids are not read."""
        paths = self.files_of(test)
        if test_ids is not None:
            begin = tuple(text for test_id in test_ids for text in beginnings(test_id))
            paths = [
                path
                for path in paths
                if unquote(path.stem).startswith(begin)
                or (len(path.stem) == _LONGEST_NAME - 3 and path.stem[-17] == "~")  # a name that was cut
            ]
        files = read_each(functools.partial(self._read_of, test), paths)
        return {file.key: file.entry for file in files if test_ids is None or file.entry.is_of(test_ids, file.key)}

    def write(self, test: str, key: str, entry: BaselineEntry, *, sync: bool = True) -> Path:
        """Replace the baseline of this case, or make it; a failure leaves the old one as it was.

        Without ``sync`` a power failure (no mere ``kill -9``) may leave an empty file: for thousands of baselines that
        can be written again from a file at hand.
        """
        path = self.path(test, key)
        file = BaselineFile(schema=SCHEMA, platform=self.platform, test=test, key=key, entry=entry)
        if os.path.lexists(path):
            self._read_of(test, path)  # what we cannot read, a later schema for one, we do not overwrite
        BASELINE_FILES.write(path, file, sync=sync)
        return path

    def delete(self, test: str, key: str) -> bool:
        path = self.path(test, key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoredFileError(
                path, f"cannot delete: {error.strerror or error}", "Check the permissions of its folder"
            ) from error
        return True

    def files(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.folder / self.platform):
            folders.sort()
            for name in sorted(files):
                if name.endswith(".json"):
                    yield Path(folder, name)

    def files_of(self, test: str) -> list[Path]:
        return sorted(self._place(test).glob("*.json"))

    def read_all(self) -> Iterator[BaselineFile]:
        return read_each(self._read, self.files())

    def platforms(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        folders = [path for path in self.folder.iterdir() if _PLATFORM.fullmatch(path.name) and path.is_dir()]
        return sorted(path.name for path in folders if next(path.rglob("*.json"), None))

    def _place(self, test: str) -> Path:
        below = _below_platform(test)
        if not below or not _PLATFORM.fullmatch(self.platform):
            raise StoredFileError(
                self.folder,
                f"the test {test!r} of platform {self.platform!r} has no place below the baseline folder",
                "Run pytest from the root directory of the suites, and keep names below 200 bytes",
            )
        place = self.folder / self.platform / below
        if not place.resolve().is_relative_to(self.folder.resolve()):
            raise StoredFileError(
                place, f"a link leads to {place.resolve()}, outside the baseline folder", "Replace the link by a folder"
            )
        return place

    def _read_of(self, test: str, path: Path) -> BaselineFile:
        file = self._read(path)
        if file.test != test:
            raise StoredFileError(path, f"holds {file.name}, and {test} has the same place", "Rename one of the files")
        return file

    def _read(self, path: Path) -> BaselineFile:
        """Read a file, and check that it lies where its own fields say: a copy would be taken for another case."""
        if path.is_symlink():
            raise StoredFileError(
                path, f"is a link to {os.path.realpath(path)}; wanted a regular file", "Put the file itself there"
            )
        file = read_file(path)
        place = f"{file.platform}/{_below_platform(file.test)}/{_file_name(file.key)}"
        if path != self.folder / place:
            raise StoredFileError(
                path, f"holds {file.name}, whose place is {place}", "Move it there, or correct its test and key"
            )
        return file


def read_file(path: Path) -> BaselineFile:
    return BASELINE_FILES.read(path)


def render(content: BaselineFile) -> bytes:
    """Text of a file: sorted keys, two spaces, lists of numbers and texts on one line, a final newline."""
    return _LIST_OF_ONE.sub(rb"[\1]", lay_out(encode(content), indent=2)) + b"\n"


def encode(content: BaselineFile) -> bytes:
    """A baseline file's content as JSON on one line."""
    document = msgspec.to_builtins(content)
    metrics, tolerances = document["entry"]["metrics"], document["entry"].pop("tolerances", {})
    for key, samples in metrics.items():
        metrics[key] = _columns(samples) | ({"tolerance": tolerances[key]} if key in tolerances else {})
    return msgspec.json.encode(document, order="sorted")


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The samples of a metric as a file holds them: common values once, others in a list, one per launch.

    Their name is that of the metric's key.
    """
    made = {
        field: first if all(sample.get(field) == first for sample in samples) else [sample[field] for sample in samples]
        for field, first in samples[0].items()
        if field not in ("name", "value", "spread")
    }
    made["launches"] = [sample["value"] for sample in samples]
    if spread := samples[0].get("spread"):
        made["spread"] = {
            field: first if field in _SHARED else [sample["spread"][field] for sample in samples]
            for field, first in spread.items()
        }
    return made


_SHARED = ("n", "over_ranks")  # parts of a stored spread that are the same in all launches


def _with_samples(document: Any) -> Any:
    """A baseline file's content with a list of samples, one per launch, in place of each metric's columns."""
    entry = document.get("entry") if isinstance(document, dict) else None
    metrics = entry.get("metrics") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(metrics, dict):
        return document
    for key, columns in metrics.items():
        where = f"`$.entry.metrics[{key}]`"
        if not isinstance(columns, dict) or not isinstance(columns.get("launches"), list) or not columns["launches"]:
            raise msgspec.ValidationError(f"Expected `launches`, a number of each launch - at {where}")
        if "tolerance" in columns:
            entry.setdefault("tolerances", {})[key] = columns.pop("tolerance")
        metrics[key] = _samples(key, columns, where)
    return document


def _samples(key: str, columns: dict[str, Any], where: str) -> list[dict[str, Any]]:
    values, spread = columns.pop("launches"), columns.pop("spread", None)
    name = metric_name(key) if columns.get("at") else key
    if metric_key(name, columns.get("at") or {}) != key:
        raise msgspec.ValidationError(f"Expected `at`, the point in the metric's key - at {where}")

    def of_launch(column: Any, launch: int, *, is_list: bool) -> Any:
        """The value of launch number ``launch`` in a column: a list with one value each, or one value for all."""
        if not isinstance(column, list) or (is_list and not (column and isinstance(column[0], list))):
            return column
        if len(column) != len(values):
            raise msgspec.ValidationError(
                f"Expected one for each of {len(values)} launches, got {len(column)} - at {where}"
            )
        return column[launch]

    found = []
    for launch, value in enumerate(values):
        sample = {
            field: of_launch(column, launch, is_list=field in ("values", "whole")) for field, column in columns.items()
        }
        if isinstance(spread, dict):
            inside = {f: of_launch(column, launch, is_list=f == "over_ranks") for f, column in spread.items()}
            sample["spread"] = inside
        found.append(sample | {"name": name, "value": value})
    return found


@functools.lru_cache(maxsize=1024)
def _below_platform(test: str) -> str:
    """Folder of a test's cases, below the platform's; or "" if it would be elsewhere."""
    file, _, function = test.partition("::")
    above, below = 0, file
    while below.startswith("../"):
        above, below = above + 1, below[3:]
    path = PurePosixPath(below)
    is_place = bool(path.name) and not path.is_absolute() and ".." not in path.parts and "\0" not in file
    if not is_place or not re.fullmatch(r"[\w:-][\w.:-]*", function):
        return ""
    place = PurePosixPath(*[_ABOVE] * above) / path.with_suffix("") / function.replace("::", ".")
    names = [name.encode(errors="replace") for name in place.parts]
    fits = max(map(len, names)) <= _LONGEST_NAME and sum(map(len, names)) <= _LONGEST_PATH
    return str(place) if fits else ""


def _file_name(key: str) -> str:
    """The file of a case: the key if every file system takes it, else percent-encoded, and cut if too long."""
    name = quote(key, safe=" ,=+@[]()")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 20]}~{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return f"{name}.json"


def _why_edited_wrongly(file: BaselineFile) -> str:
    """Why this baseline file cannot be what a recording wrote, after an edit by hand, or ""."""
    entry = file.entry
    if entry.workload and not entry.metrics:
        return "`$.entry.metrics` is empty: a recorded baseline has at least one metric"
    for key, metric in entry.metrics.items():
        kind, where = METRIC_KINDS[metric[0].better], f"`$.entry.metrics[{key}]`"
        if not kind.counts_steps and all(m.value is None for m in metric):
            return f"`$.entry.metrics[{key}].launches` has no value: each launch of a baseline has one"
        if kind.is_exact and key in entry.tolerances:
            return (
                f"an exact metric has no tolerance: take it out, or record the number as lower or higher - at {where}"
            )
        for m in metric:
            low, high = (m.spread.minimum, m.spread.p95) if m.spread is not None else (0.0, 0.0)
            if (low or high) and not (m.value is not None and 0 < low <= m.value <= high):
                return f"{where}: a launch of {m.value} cannot have minimum {low} and p95 {high}"
    return ""


BASELINE_FILES = FileKind(
    name="baseline file",
    record=BaselineFile,
    schema=SCHEMA,
    max_bytes=MAX_FILE_BYTES,
    next_step=(
        "If you edited it, correct that; else restore it from version control, or delete it and record it again with "
        "--distbench-update"
    ),
    where="The stored baseline is unchanged",
    smaller="Record fewer metrics, or shorter parameters",
    render=render,
    is_edited=True,
    load=_with_samples,
    check=_why_edited_wrongly,
)


_MOST_COMMITS = 50
_TIMEOUT_S = 60.0


class NotRecorded(DistbenchError):
    """The baseline commit is unknown; the text says why, and what to do."""


Recording = tuple[str, dict[str, list[float | None]], BaselineFile | None]
"""A commit whose tree was measured for a baseline, and what it recorded: the numbers by metric, one per launch; and the
file, or None if its schema is another, of which the numbers alone are known."""


def recordings(path: Path, root: Path) -> Iterator[Recording]:
    """The recordings of the baseline in a file, the last one first; at least one.

    What was set by hand (tolerances, bounds, expected regressions, single numbers) is no recording, nor is a file that
    was renamed or that nobody can read. A merge counts as its parents do.

    Args:
        root: the working tree that the tests are of.

    Raises:
        NotRecorded: the file is not committed, or not of this repository; or the clone does not reach so far.
    """
    top = _git(path.parent, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root:
        raise NotRecorded("its baseline is not in the repository of the tests")
    name = path.resolve().relative_to(root).as_posix()
    if _git(root, "status", "--porcelain", "--ignored", "--", name):
        raise NotRecorded(f"its baseline is not committed: git add {name}, and commit it")
    ends: set[str] = set()
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":  # there a commit seems to have made all it has
        ends = set((root / _git(root, "rev-parse", "--git-path", "shallow")).read_text().split())
    found: Recording | None = None
    for older in _versions(root, name):
        if found is not None and _were_measured_again(found[1], older[1]):
            yield _known(found, ends)
        found = older
    if found is None:
        raise NotRecorded(f"no commit has its baseline {name}")
    yield _known(found, ends)


def _known(recording: Recording, ends: set[str]) -> Recording:
    if recording[0] in ends:
        raise NotRecorded(
            "this is a shallow clone, which does not contain the baseline commit: git fetch --deepen=100, or in GitHub "
            "Actions fetch-depth: 0 for actions/checkout"
        )
    return recording


def _versions(root: Path, name: str) -> Iterator[Recording]:
    """Versions of a file, the last commit first, through its renames; without those that nobody can read."""
    at = "HEAD"
    while commits := _git(root, "log", f"--max-count={_MOST_COMMITS}", "--format=%H", at, "--", name).split():
        readable = [found for commit in commits if (found := _version(root, commit, name)) is not None]
        yield from readable
        at, name = f"{commits[-1]}^", _name_before(root, commits[-1], name, readable[-1] if readable else None)
        if not name:
            return


def _version(root: Path, commit: str, name: str) -> Recording | None:
    data = _git(root, "show", f"{commit}:{name}").encode()
    try:
        metrics = msgspec.json.decode(data)["entry"]["metrics"]
        numbers = {key: metric["launches"] for key, metric in metrics.items()}  # as in every schema
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        return None
    try:
        return commit, numbers, BASELINE_FILES.parse(data, root / name)
    except StoredFileError:
        return commit, numbers, None


def _name_before(root: Path, commit: str, name: str, now: Recording | None) -> str:
    """Name of a file before a commit that renamed it, or "".

    Git recognises it by its lines; numbers identify a file whose lines were laid out again.
    """
    of = ("diff-tree", "-r", "-z", "--no-commit-id")
    renamed = _git(root, *of, "--find-renames", "--diff-filter=R", "--name-status", commit).split("\0")
    deleted = _git(root, *of, "--no-renames", "--diff-filter=D", "--name-only", commit).split("\0")
    by_lines = [old for old, new in zip(renamed[1::3], renamed[2::3], strict=False) if new == name]
    by_numbers = (
        old
        for old in deleted
        if now is not None
        and old.endswith(".json")
        and (before := _version(root, f"{commit}^", old)) is not None
        and now[1].keys() == before[1].keys()
        and not _were_measured_again(now[1], before[1])
    )
    return next(itertools.chain(by_lines, by_numbers), "")


def _were_measured_again(new: Mapping[str, Sequence[object]], old: Mapping[str, Sequence[object]]) -> bool:
    """Whether numbers are of other launches: more than a third of a metric's differ. Few edited ones do not count."""
    for key, now in new.items():
        then = old.get(key, ())
        if len(now) != len(then) or 3 * sum(a != b for a, b in zip(now, then, strict=True)) > len(now):
            return True
    return False


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = git.run(folder, *arguments, timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
