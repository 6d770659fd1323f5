"""Numbers out of what a script prints and writes: a reader per format, and what is wrong with one.

A reader looks at one rank's output and files. Files that it reads are noted before the launch: a script may append to
an earlier run's. A conftest adds a reader by one row: ``READERS["mine"] = read``, and asks for it with
``Reader(kind="mine", ...)``.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import hashlib
import importlib
import json
import math
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ReadingError, show, tell
from pytest_distbench.launch.reduce import of_rank
from pytest_distbench.records import metric, wanted
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import Observation, Reader, as_scalar, metric_key
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wanted import Wanted, one_of, whole

_LINE_END = re.compile(r"\r\n|\n|\r")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LONGEST_SHOWN = 160
_MOST_SHOWN = 5
_MOST_COMPARED = 2_000
_COARSEST_S = 2.0  # some file systems note times in such steps, or by a server's clock
LONGEST_S = 60.0  # CPU seconds for reading one metric


Found = tuple[str, str, str]  # a value as text, its place for an error, and what stands next to it


@dataclass(frozen=True, slots=True)
class Place:
    plan: LaunchPlan
    rank: int

    def lines(self) -> Iterator[str]:
        """Lines that the rank printed on stdout and stderr, each state of a progress bar being one."""
        try:
            with self.plan.files.log(self.rank).open(errors="replace", newline="") as log:
                for line in log:
                    yield from (_COLOURS.sub("", part) for part in _LINE_END.split(line.rstrip("\r\n")))
        except FileNotFoundError:
            return

    def path(self, source: str) -> Path:
        """A file of the launch; relative paths are relative to the working directory."""
        path = Path(self.plan.working_dir, self.plan.fill(source))
        if not path.exists():
            near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            there = f"{path.parent} has {', '.join(near[:_MOST_SHOWN]) or 'nothing'}"
            raise ReadingError(
                f"there is no {path}; " + (there if path.parent.is_dir() else f"nor a folder {path.parent}")
            )
        if not (path.is_file() or path.is_dir()):
            raise ReadingError(f"{path} is neither a file nor a folder: reading it might never end")
        if path.is_file() and not self.is_of_this_launch(path):
            raise ReadingError(
                f"{path} is older than this launch, which did not write it; did an earlier run leave it next to the "
                f"script?"
            )
        if path.is_file() and (earlier := appended_to(self.plan, path)):
            raise ReadingError(
                f"{path} was there before this launch, which appended to it: its first {earlier} bytes are from an "
                f"earlier run. Delete it, or let the script write it into {{launch_dir}}"
            )
        return path

    def is_of_this_launch(self, path: Path) -> bool:
        began = self.plan.files.began
        return not began.exists() or path.stat().st_mtime >= began.stat().st_mtime - _COARSEST_S


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what searches forever, as a regular expression may, by CPU time.

    Only the main thread can be interrupted; Python's ``re`` asks for signals while it searches.
    """

    def stop(*_: object) -> None:
        raise ReadingError(
            f"searching took longer than {LONGEST_S:.0f} s of CPU time; does a repetition contain another, as in (a+)+?"
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def nearest(pattern: str, lines: Iterable[str]) -> Sequence[str]:
    """Lines most like what a pattern would match, else the last ones."""
    kept = [line.strip() for line in lines if line.strip()][-_MOST_COMPARED:]
    words = set(re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]|\(\?P<\w+>", " ", pattern)))
    sharing = [line for line in kept if words & set(re.findall(r"[A-Za-z]{2,}", line))]
    literal = re.sub(r"\\[A-Za-z]|\(\?P<\w+>|[\\^$.*+?()\[\]{}|]", " ", pattern)
    close = difflib.get_close_matches(literal, list(dict.fromkeys(sharing)), n=_MOST_SHOWN, cutoff=0.0)
    return [line[:_LONGEST_SHOWN] for line in close or kept[-_MOST_SHOWN:]]


_FILE_KINDS = ("jsonl", "csv")  # readers of one file; TensorBoard begins a new one in every run
_MOST_BYTES = 2**20  # of a file's beginning, which appending leaves as it is


def note_before(plan: LaunchPlan) -> None:
    """Keep the size and beginning of each file that will be read."""
    found = {}
    for reader in plan.read.values():
        if reader.kind not in _FILE_KINDS:
            continue
        path = Path(plan.working_dir, plan.fill(reader.source))
        with contextlib.suppress(OSError):
            if path.is_file() and (size := path.stat().st_size):
                found[str(path)] = (size, _digest(path, size))
    if found:
        plan.files.before.write_text(json.dumps(found))


def appended_to(plan: LaunchPlan, path: Path) -> int:
    """Bytes of an earlier run that a file still begins with, or 0."""
    if not plan.files.before.exists():
        return 0
    size, digest = json.loads(plan.files.before.read_text()).get(str(path), (0, ""))
    return size if size and path.stat().st_size > size and _digest(path, size) == digest else 0


def _digest(path: Path, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(size, _MOST_BYTES))).hexdigest()


def read_csv(reader: Reader, place: Place) -> list[Found]:
    """Non-empty cells of the column ``reader.key``."""
    path = place.path(reader.source)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        columns = [name.strip() for name in rows.fieldnames or []]
        rows.fieldnames = columns
        if (there := columns.count(reader.key)) != 1:
            told = f"{there} columns are called {reader.key!r}" if there else f"no column {reader.key!r}"
            header = f"there are {', '.join(columns) or 'none'}"
            if len(columns) == 1 and re.search(r"[\t;|]", columns[0]):
                first = show(columns[0])
                header = f"its first line is {first}, without a comma, and commas separate the columns of a CSV file"
            raise ReadingError(f"{path}: {told}; {header}")
        found = [
            (cell, f"{path}:{rows.line_num}", ", ".join(f"{name}={row[name]}" for name in columns))
            for row in rows
            if (cell := (row[reader.key] or "").strip())
        ]
    if not found:
        raise ReadingError(f"{path}: the column {reader.key!r} is empty")
    return found


def read_jsonl(reader: Reader, place: Place) -> list[Found]:
    """``reader.key`` of every line that has it; ``a.b`` is ``b`` inside ``a``, unless there is an ``a.b``."""
    path = place.path(reader.source)
    found, keys = [], dict[str, None]()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ReadingError(f"{path}:{number}: no JSON: {error}: {line.strip()[:80]!r}") from None
            value = _look_up(row, reader.key)
            if value is not None:
                found.append((json.dumps(value).strip('"'), f"{path}:{number}", line.strip()))
            elif isinstance(row, Mapping):
                keys.update(dict.fromkeys(row))
    if not found:
        raise ReadingError(f"{path}: no line has {reader.key!r}; there are {', '.join(keys) or 'none'}")
    return found


def _look_up(row: object, key: str) -> object:
    if not isinstance(row, Mapping):
        return None
    if key in row:
        return row[key]
    first, separator, rest = key.partition(".")
    return _look_up(row.get(first), rest) if separator else None


_MARK = ":::MLLOG"


def read_mllog(reader: Reader, place: Place) -> list[Found]:
    """Values of the events named ``reader.key``, or seconds since the last ``reader.since`` before each."""
    found, known = [], dict[str, None]()
    since_ms: float | None = None
    for number, line in enumerate(place.lines(), 1):
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        where = f"line {number} of rank {place.rank}'s output"
        try:
            event = json.loads(text)
        except ValueError as error:
            raise ReadingError(f"{where}: no JSON after {_MARK}: {error}") from None
        known[str(event["key"])] = None
        if event["key"] == reader.since:
            since_ms = float(event["time_ms"])
        if event["key"] == reader.key:
            if not reader.since:
                found.append((json.dumps(event.get("value")).strip('"'), where, text.strip()))
            elif since_ms is not None:
                found.append((repr((float(event["time_ms"]) - since_ms) / 1e3), where, text.strip()))
    if not found:
        asked = f"{reader.key!r} after a {reader.since!r}" if reader.since else f"{reader.key!r}"
        raise ReadingError(
            f"rank {place.rank} logged no event {asked}; there are {', '.join(known) or f'no {_MARK} lines'}"
        )
    return found


VALUE = "value"  # the group with the number, in a pattern with several

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_IN_ITS_PLACE = ("1.0", "1")  # what a pattern takes for a number, put where a line says nan


def read_stdout(reader: Reader, place: Place) -> list[Found]:
    """Every match of ``reader.source`` in the output, at most one a line."""
    pattern = re.compile(reader.source)
    group: int | str = VALUE if VALUE in pattern.groupindex else 1
    found = []
    for number, line in enumerate(place.lines(), 1):
        where = f"line {number} of rank {place.rank}'s output: {line.strip()[:160]}"
        if (match := pattern.search(line)) is not None and match[group] is not None:
            whole = _NUMBER.match(line, match.start(group))
            if whole is not None and whole.end() > match.end(group) and match[group][-1:].isdigit():
                raise ReadingError(
                    f"the pattern {_shown(reader)} takes {match[group]!r} of the number {whole[0]!r}: {where}. Let "
                    "its group take the whole number, as pytest_distbench.read.NUMBER does"
                )
            found.append((match[group], where, line.strip()))
        elif (text := _not_finite(pattern, group, line)) is not None:
            found.append((text, where, line.strip()))
    if not found:
        lines = nearest(reader.source, place.lines())
        shown = "".join(f"\n{line}" for line in lines)
        told = f"; the nearest lines are:{shown}" if lines else ", which is empty"
        raise ReadingError(f"the pattern {_shown(reader)} matches nothing in the output of rank {place.rank}{told}")
    return found


def _shown(reader: Reader) -> str:
    parts = [repr(part) for part in reader.source.split(metric.NUMBER)]
    return " + NUMBER + ".join(parts).removesuffix(" + ''").removeprefix("'' + ")


def _not_finite(pattern: re.Pattern[str], group: int | str, line: str) -> str | None:
    """The nan or inf where the pattern wants a number, or None."""
    for found in _NOT_FINITE.finditer(line):
        for number in _IN_ITS_PLACE:
            match = pattern.search(line[: found.start()] + number + line[found.end() :])
            if match is not None and match.span(group) == (found.start(), found.start() + len(number)):
                return found[0]
    return None


def read_tensorboard(reader: Reader, place: Place) -> list[Found]:
    """Values of the tag ``reader.key`` below a folder, by step."""
    try:
        accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        raise ReadingError(f"reading TensorBoard files needs its package: pip install tensorboard ({error})") from None
    folder = place.path(reader.source)
    there = sorted(folder.rglob("events.out.tfevents.*")) if folder.is_dir() else [folder]
    files = [file for file in there if place.is_of_this_launch(file)]
    if not files:
        older = f", but for {len(there)} of earlier runs" if there else ""
        raise ReadingError(f"{folder} has no event file{older}")
    scalars, tags = [], dict[str, None]()
    for file in files:
        events = accumulator.EventAccumulator(str(file), size_guidance={"tensors": 0, "scalars": 0})
        events.Reload()
        known = events.Tags()
        tags.update(dict.fromkeys([*known["scalars"], *known["tensors"]]))
        if reader.key in known["scalars"]:
            scalars += [(event.step, event.value, file.name) for event in events.Scalars(reader.key)]
        elif reader.key in known["tensors"]:
            make = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
            scalars += [
                (event.step, float(make(event.tensor_proto).item()), file.name) for event in events.Tensors(reader.key)
            ]
    if not scalars:
        raise ReadingError(f"{folder}: no tag {reader.key!r}; there are {', '.join(tags) or 'none'}")
    scalars.sort(key=lambda one: one[0])
    return [(repr(value), f"step {step} of {name}", f"step {step}") for step, value, name in scalars]


_LONGEST_BESIDE = 80
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)

READERS: dict[str, Callable[[Reader, Place], list[Found]]] = {
    "stdout": read_stdout,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "mllog": read_mllog,
    "tensorboard": read_tensorboard,
}
"""Kind -> function that finds a reader's values at a place, in order, or raises ReadingError."""


def problem_with(reader: Reader) -> str:
    """The first thing wrong with a reader, before anything is launched, or ""."""
    if reader.kind not in READERS:
        return f"unknown kind of reader {show(reader.kind)}; known are {', '.join(READERS)}"
    if reader.kind == "stdout":
        try:
            pattern = re.compile(reader.source)
        except (re.error, OverflowError, RecursionError) as error:
            return f"{reader.source!r} is no regular expression: {error}"
        if pattern.groups != 1 and VALUE not in pattern.groupindex:
            return (
                f"{reader.source!r} has {pattern.groups} groups; wanted one around the number, or several of which one "
                f"is (?P<{VALUE}>...)"
            )
    kind = METRIC_KINDS[reader.better]
    for name, kind_of in _WANTED.items():
        if kind_of.take(value := getattr(reader, name)) is None:
            return f"{name}={show(value)}; wanted {kind_of.words}"
    if reader.take and kind.shape == "series":
        return f"take={reader.take!r} makes one number, and better={reader.better!r} judges a series"
    for name, scalars in (("at", reader.at), ("identity", reader.identity)):
        if not isinstance(scalars, dict) or not all(metric.AXIS.take(name) for name in scalars):
            return f"{name}={show(scalars)}; wanted a dict from names, without [ ] = and , to plain values"
        if not all(isinstance(v, bool | int | float | str) and as_scalar(v) is not None for v in scalars.values()):
            return f"{name}={show(scalars)}; wanted finite numbers, printable texts, True or False"
    return ""


_WANTED: dict[str, Wanted[Any]] = {
    "scale": Wanted("a finite number other than 0", lambda value: wanted.number().plain().take(value) or None),
    "rank": Wanted("the number of a rank, or 'all'", lambda value: "all" if value == "all" else whole(0).take(value)),
    "skip": Wanted("how many values at the start do not count", whole(0).take),
    "first": Wanted("how many values count", lambda value: "all" if value is None else whole(1).take(value)),
    "take": Wanted(one_of(metric.TAKES).words, one_of(["", *metric.TAKES]).take),
}


def readings(plan: LaunchPlan) -> list[Observation]:
    return [
        of_rank(rank, _observe(name, reader, Place(plan, rank)))
        for name, reader in plan.read.items()
        for rank in (range(plan.processes) if reader.rank == "all" else [reader.rank])
    ]


def _observe(name: str, reader: Reader, place: Place) -> Observation:
    key = metric_key(name, reader.at)
    try:
        with limited():
            found = READERS[reader.kind](reader, place)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, csv.Error) as error:
        source = reader.source or "the output"
        raise ReadingError(f"{key}: cannot read {show(source)}: {tell(error)}") from None
    kept = found[reader.skip :]
    if not kept:
        number = f"{len(found)} value{'s' * (len(found) != 1)} found"
        raise ReadingError(f"{key}: {number}, and skip={reader.skip} leaves nothing: {found[-1][1]}")
    if reader.first is not None and len(kept) < reader.first:
        raise ReadingError(
            f"{key}: wanted the first {reader.first} values, found {len(kept)}"
            + (f" after the {reader.skip} that are skipped" if reader.skip else "")
            + f"; the last is {kept[-1][1]}"
        )
    is_curve = METRIC_KINDS[reader.better].is_curve
    rest = kept[reader.first :] if is_curve and reader.first else []
    kept = kept[: reader.first]
    values = [_number(key, text.strip(), where) * reader.scale for text, where, _ in kept]
    values += [_number_behind(text.strip(), reader.scale) for text, *_ in rest]
    kind = METRIC_KINDS[reader.better]
    take = reader.take or ("last" if kind.shape == "number" else "")
    taken_from = values[: metric.MOST_TAKEN_FROM] if take and kind.is_of_training else []
    values = [metric.TAKES[take](values)] if take else values
    why = kind.why_impossible(values, reader.unit, is_series=not take) if kind.is_judged or reader.bounds else ""
    if why:
        raise ReadingError(f"{key}: {why}: {kept[-1][1]}; is unit={reader.unit!r} right? (info is not judged)")
    return Observation(
        name=name,
        unit=reader.unit,
        better=reader.better,
        reduce=kind.reduce,
        values=values,
        is_series=not take,
        beside=[beside[:_LONGEST_BESIDE] for *_, beside in (*kept, *rest)] if is_curve else [],
        at=reader.at,
        identity=reader.defining,
        bounds=reader.bounds,
        taken_from=taken_from,
        curve_steps=(reader.first or 0) if is_curve else 0,
    )


def _number_behind(text: str, scale: float) -> float:
    try:
        number = _number("", text, "") * scale
    except ReadingError:
        return metric.LARGEST_NUMBER
    return number if abs(number) < metric.LARGEST_NUMBER else metric.LARGEST_NUMBER


def _number(key: str, text: str, where: str) -> float:
    try:
        number = float(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text.replace("_", " _"))
    except ValueError:
        raise ReadingError(f"{key}: {show(text)} is no number: {where}") from None
    if not math.isfinite(number):
        raise ReadingError(f"{key}: the value is {text}: {where}")
    return number
