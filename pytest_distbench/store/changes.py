"""What differs between two versions of the store: folders, or git revisions of one.

New fields of an entry need no change here.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pytest_distbench import git
from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.records.case import BaselineEntry, BaselineMetric, EntryName
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.record import Record
from pytest_distbench.records.summaries import median
from pytest_distbench.store.baselines import BASELINE_FILES, BaselineFile, BaselineStore
from pytest_distbench.store.entries import Choice

_LONGEST_VALUE = 60


class MetricChange(Record, frozen=True, kw_only=True):
    metric: str
    unit: str
    better: Better
    old: float | None
    """Median over launches; None where there was none."""
    new: float | None
    old_launches: int
    new_launches: int

    @property
    def ratio(self) -> float | None:
        """New / old; None where there is none."""
        return self.new / self.old if self.new is not None and self.old else None

    @property
    def worse_by(self) -> float:
        """How much worse, as a logarithm: negative is better. Infinite where a ratio does not say it."""
        if self.old == self.new:
            return 0.0
        if METRIC_KINDS[self.better].rule == "exact" or self.ratio is None or self.ratio <= 0:
            return math.inf
        return math.log(self.ratio) * (METRIC_KINDS[self.better].sign or 1)


class EntryChange(Record, frozen=True, kw_only=True):
    name: EntryName
    kind: Literal["new", "removed", "changed"]
    metrics: list[MetricChange]
    """Those whose launches differ; of exact numbers, those whose values do."""
    notes: list[str]
    """Every other field that differs: ``software.torch 2.12.0 -> 2.13.0``."""


def entry_change(name: EntryName, old: BaselineEntry | None, new: BaselineEntry | None) -> EntryChange | None:
    if old == new:
        return None
    before = old.metrics if old is not None else {}
    after = new.metrics if new is not None else {}
    return EntryChange(
        name=name,
        kind="new" if old is None else "removed" if new is None else "changed",
        metrics=[
            _metric_change(key, before.get(key), after.get(key))
            for key in sorted({*before, *after})
            if _values(before.get(key)) != _values(after.get(key))
        ],
        notes=list(_notes(old, new)) if old is not None and new is not None else [],
    )


def _metric_change(key: str, old: BaselineMetric | None, new: BaselineMetric | None) -> MetricChange:
    described = new or old
    assert described is not None
    return MetricChange(
        metric=key,
        unit=described.unit,
        better=described.better,
        old=median(_launches(old)),
        new=median(_launches(new)),
        old_launches=len(_launches(old)),
        new_launches=len(_launches(new)),
    )


def _launches(metric: BaselineMetric | None) -> list[float | None]:
    return metric.launches if metric is not None else []


def _values(metric: BaselineMetric | None) -> object:
    """What must be equal: of exact numbers it does not matter how often they were seen."""
    return (
        set(_launches(metric))
        if metric is not None and METRIC_KINDS[metric.better].rule == "exact"
        else _launches(metric)
    )


def _notes(old: BaselineEntry, new: BaselineEntry) -> Iterator[str]:
    for field in BaselineEntry.__struct_fields__:
        if field != "metrics":
            yield from _difference(field, getattr(old, field), getattr(new, field))
    for key in sorted({*old.metrics} & {*new.metrics}):
        for field in BaselineMetric.__struct_fields__:
            if field != "launches":
                before, after = getattr(old.metrics[key], field), getattr(new.metrics[key], field)
                yield from _difference(f"{key}.{field}", before, after)


def _difference(field: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _difference(f"{field}.{key}", old.get(key), new.get(key))
    elif isinstance(old, Fingerprint) and isinstance(new, Fingerprint) and (told := differences(old, new)):
        yield from (f"{field}: {line}" for line in told)
    else:
        yield f"{field} {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    if value in (None, ""):
        return "none"
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


class FolderVersion:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> set[str]:
        stores = [BaselineStore(self._folder, platform) for platform in BaselineStore(self._folder, "").platforms()]
        start = len(str(self._folder / "x")) - 1
        return {str(path)[start:] for store in stores for path in store.files()}

    def read(self, path: str) -> bytes:
        return BASELINE_FILES.read_bytes(self._folder / path)


class RevisionVersion:
    """The store at a git revision. One ``git cat-file`` serves all of its files."""

    def __init__(self, folder: Path, revision: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
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

    def paths(self) -> set[str]:
        return set(self._objects)

    def read(self, path: str) -> bytes:
        if self._process is None:
            command = git.command(self._folder, "cat-file", "--batch")
            self._process = subprocess.Popen(
                command, env=git.variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._objects[path]}\n".encode())
        self._process.stdin.flush()
        facts = self._process.stdout.readline().split()
        if len(facts) != 3:  # a partial clone that cannot fetch it
            raise DistbenchError(f"git has no content for {path} ({facts!r}): fetch the revision whole")
        return self._process.stdout.read(int(facts[2]) + 1)[:-1]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def _git(self, *arguments: str) -> str | None:
        """Its output; None where git says no."""
        try:
            done = git.run(self._folder, *arguments)
        except OSError as error:
            raise DistbenchError(f"cannot run git: {error.strerror or error}; diff against a folder instead") from error
        return done.stdout.removesuffix("\n") if done.returncode == 0 else None


Version = FolderVersion | RevisionVersion
"""Files of a store at one point in time, by path below it."""


def changes_between(old: Version, new: Version, choice: Choice, *, platform: str = "") -> tuple[list[EntryChange], int]:
    """What differs between two versions, and how many entries are the same in both."""
    before, after = old.paths(), new.paths()
    changes, unchanged = [], 0
    for path in sorted(before | after):
        if platform and not path.startswith(f"{platform}/"):
            continue
        was = old.read(path) if path in before else None
        is_now = new.read(path) if path in after else None
        then = _parse(was, path)
        now = then if was == is_now else _parse(is_now, path)
        known = now or then
        if known is None or not choice(known.name):
            continue
        change = entry_change(known.name, then.entry if then else None, now.entry if now else None)
        if change is None:
            unchanged += 1
        else:
            changes.append(change)
    return changes, unchanged


def _parse(data: bytes | None, path: str) -> BaselineFile | None:
    return None if data is None else BASELINE_FILES.parse(data, Path(path))
