"""Readers of metrics from what a script prints and writes, one per format, with the errors of each.

A reader reads one rank's output and files. Files that it will read are noted before the launch, as a script may append
to an earlier run's. A conftest adds a reader by one row, ``READERS["mine"] = read``, and selects it with
``Reader(kind="mine", ...)``.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import hashlib
import importlib
import itertools
import json
import math
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pytest_distbench.errors import ConfigurationError, ReadingError, error_text, show
from pytest_distbench.launch.reduce import of_rank
from pytest_distbench.launch.rows import MISSING, Row, look_up, values_of, with_points
from pytest_distbench.records import metric, wanted
from pytest_distbench.records.kinds import METRIC_KINDS, grouped
from pytest_distbench.records.metric import Observation, Reader, as_scalar, metric_key
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wanted import Wanted, one_of, whole
from pytest_distbench.units import and_more, convert, is_duration, is_rate, is_size

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
    remarks: list[str] = field(default_factory=list)  # what is to be said of what was read there

    def lines(self) -> Iterator[str]:
        """Lines of the rank's stdout and stderr; each state of a progress bar is a line."""
        try:
            with self.plan.files.log(self.rank).open(errors="replace", newline="") as log:
                for line in log:
                    yield from (_COLOURS.sub("", part) for part in _LINE_END.split(line.rstrip("\r\n")))
        except FileNotFoundError:
            return

    def path(self, source: str) -> Path:
        """Path of a file of the launch; relative ones are relative to the working directory."""
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
    """Interrupt a regular expression that searches forever, by CPU time.

    Only the main thread can be interrupted; Python's ``re`` checks for signals while it searches.
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
    """A few lines that share words with a pattern that matched nothing, the most similar first; else the last lines."""
    kept = [line.strip() for line in lines if line.strip()][-_MOST_COMPARED:]
    words = set(re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]|\(\?P<\w+>", " ", pattern)))
    sharing = [line for line in kept if words & set(re.findall(r"[A-Za-z]{2,}", line))]
    literal = re.sub(r"\\[A-Za-z]|\(\?P<\w+>|[\\^$.*+?()\[\]{}|]", " ", pattern)
    close = difflib.get_close_matches(literal, list(dict.fromkeys(sharing)), n=_MOST_SHOWN, cutoff=0.0)
    return [line[:_LONGEST_SHOWN] for line in close or kept[-_MOST_SHOWN:]]


_FILE_KINDS = ("json", "jsonl", "csv")  # readers of one file; TensorBoard begins a new one in every run
_MOST_BYTES = 2**20  # of a file's beginning, which appending leaves as it is


def note_before(plan: LaunchPlan) -> None:
    """Store the size and a digest of the beginning of each file that will be read."""
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
    """Size in bytes of the file before the launch, if the launch appended to it, else 0."""
    if not plan.files.before.exists():
        return 0
    size, digest = json.loads(plan.files.before.read_text()).get(str(path), (0, ""))
    return size if size and path.stat().st_size > size and _digest(path, size) == digest else 0


def _digest(path: Path, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(size, _MOST_BYTES))).hexdigest()


def read_csv(reader: Reader, place: Place) -> list[Found]:
    """Cells of the column ``reader.key``."""
    path = place.path(reader.source)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.DictReader(file, skipinitialspace=True, delimiter="\t" if path.suffix == ".tsv" else ",")
        columns = [name.strip() for name in table.fieldnames or []]
        table.fieldnames = columns
        for name in (reader.key, *reader.where, *([reader.step] if reader.step else [])):
            if (there := columns.count(name)) == 1:
                continue
            problem = f"{there} columns are called {name!r}" if there else f"no column {name!r}"
            header = f"there are {', '.join(columns) or 'none'}"
            if len(columns) == 1 and re.search(r"[\t;|]", columns[0]):
                first = show(columns[0])
                header = f"its first line is {first}, without a comma, and commas separate the columns of a CSV file"
            raise ReadingError(f"{path}: {problem}; {header}")
        return _found(path, _cells_of(path, table, columns), reader.key, reader, place)


def _cells_of(path: Path, table: csv.DictReader[str], columns: Sequence[str]) -> Iterator[Row]:
    for row in table:
        where = f"{path}:{table.line_num}"
        if None in row and any(cell.strip() for cell in row.pop(None)):
            raise ReadingError(f"{where}: more cells than the {len(columns)} columns of the first line")
        yield Row(row, where, ", ".join(f"{name}={row[name] or ''}" for name in columns))


def read_jsonl(reader: Reader, place: Place) -> list[Found]:
    """Values of ``reader.key`` in the lines of a JSON lines file that have it."""
    path = place.path(reader.source)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return _found(path, _lines_of(path, file), with_points(reader.key), reader, place)


def _lines_of(path: Path, file: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            advice = ""
            with contextlib.suppress(ValueError):
                json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
                advice = ". The file is one JSON document, which read.json reads"
            raise ReadingError(f"{path}:{number}: no JSON: {error}: {line.strip()[:80]!r}{advice}") from None
        yield Row(row, f"{path}:{number}", line.strip())


_EACH = "[]"  # behind the name of a list: its elements are the rows


def read_json(reader: Reader, place: Place) -> list[Found]:
    """Value of ``reader.key`` in a JSON document, or its values in the elements of a list."""
    path = place.path(reader.source)
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
    except ValueError as error:
        advice = "; read.jsonl reads a file with one JSON object a line" if "Extra data" in str(error) else ""
        raise ReadingError(f"{path}: no JSON: {error}{advice}") from None
    name, each, key = with_points(reader.key).partition(_EACH)
    if not each:
        parts = name.split(".") if look_up(document, name) is MISSING else []
        for end in range(1, len(parts)):
            head, tail = ".".join(parts[:end]), ".".join(parts[end:])
            if isinstance(look_up(document, head), list):
                raise ReadingError(f"{path}: {head!r} is a list: wanted {head}{_EACH}.{tail}, or {head}.0.{tail}")
        return _found(path, [Row(document, str(path), "")], name, reader, place)
    rows = look_up(document, name)
    if not isinstance(rows, list):
        there = f"there are {', '.join(document)}" if isinstance(document, Mapping) else "it is none itself"
        raise ReadingError(f"{path}: no list {name!r}; {there}")
    elements = (Row(row, f"{path}: {name}[{number}]", json.dumps(row)) for number, row in enumerate(rows))
    return _found(path, elements, key.removeprefix("."), reader, place)


_EMPTY = (
    "it is empty, as pandas writes nan, and rows before it have a value. Where there is none on purpose, let the "
    "script write JSON lines without the key"
)


def _found(path: Path, rows: Iterable[Row], key: str, reader: Reader, place: Place) -> list[Found]:
    """Values of a key in the rows that count: (value as text, place in the file, text of the row).

    Raises:
        ReadingError: as :func:`values_of`, or a value is a list or an object.
    """
    try:
        values, remark = values_of(rows, key, reader)
    except ReadingError as error:
        raise error if str(error).startswith(str(path)) else ReadingError(f"{path}: {error}") from None
    if remark:
        advice = "" if reader.kind == "tensorboard" else "; step=None reads them all"
        place.remarks.append(remark.replace(f"{path.parent}/", "") + advice)  # whose launch has a folder of its own
    for value, where, _ in values:
        if isinstance(value, Mapping | list):
            inside = [f"{reader.key}.{name}" for name in (value if isinstance(value, Mapping) else range(len(value)))]
            each = f", or with read.json {reader.key}{_EACH}" if isinstance(value, list) else ""
            names = ", ".join(inside[:_MOST_SHOWN]) or "nothing"
            raise ReadingError(
                f"{reader.key!r} is {show(value, longest=80)}: wanted a number in it: {names}{each}: {where}"
            )
    return [
        ("nan", f"{where}: {_EMPTY}", context)
        if value is None
        else (value if isinstance(value, str) else json.dumps(value), where, context)
        for value, where, context in values
    ]


_MARK = ":::MLLOG"


def read_mllog(reader: Reader, place: Place) -> list[Found]:
    """Values of MLPerf log events named ``reader.key``, or seconds from the last ``reader.since`` before each."""
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
        name, value = str(event["key"]), event.get("value")
        known.update(dict.fromkeys([name, *(f"{name}.{key}" for key in value)] if isinstance(value, dict) else [name]))
        if name == reader.since:
            since_ms = float(event["time_ms"])
        if reader.since:
            if name == reader.key and since_ms is not None:
                found.append((repr((float(event["time_ms"]) - since_ms) / 1e3), where, text.strip()))
        elif (inner := look_up({name: value}, with_points(reader.key))) is not MISSING:
            found.append((json.dumps(inner).strip('"'), where, text.strip()))
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
    """Matches of ``reader.source`` in the output, at most one per line."""
    pattern = re.compile(reader.source)
    group: int | str = VALUE if VALUE in pattern.groupindex else 1
    found: list[Found] = []
    units: dict[str, str] = {}  # the first number that has it, and where
    for number, line in enumerate(place.lines(), 1):
        where = f"line {number} of rank {place.rank}'s output: {line.strip()[:160]}"
        match = pattern.search(line) or _turned_round(pattern, line)
        if match is not None and match[group] is not None:
            whole = _NUMBER.match(match.string, match.start(group))
            if whole is not None and whole.end() > match.end(group) and match[group][-1:].isdigit():
                raise ReadingError(
                    f"the pattern {_shown(reader)} takes {match[group]!r} of the number {whole[0]!r}: {where}. Let "
                    "its group take the whole number, as pytest_distbench.read.NUMBER does"
                )
            unit = _unit_behind(match.string[match.end(group) :])
            units.setdefault(unit, f"{match[group]} {unit}".strip() + f" in {where}")
            by_unit = _reads_by_unit(reader, unit)
            found.append((f"{match[group]} {unit}" if by_unit else match[group], where, line.strip()))
        elif (text := _not_finite(pattern, group, line)) is not None:
            found.append((text, where, line.strip()))
    if not found:
        lines = nearest(reader.source, place.lines())
        shown = "".join(f"\n{line}" for line in lines)
        nearby = f"; the nearest lines are:{shown}" if lines else ", which is empty"
        raise ReadingError(f"the pattern {_shown(reader)} matches nothing in the output of rank {place.rank}{nearby}")
    mixed = [unit for unit in units if unit or not units.keys().isdisjoint(_MULTIPLES)]
    if len(mixed) > 1 and not all(_reads_by_unit(reader, unit) for unit in mixed):
        mixture = "\n".join(units[unit] for unit in mixed)
        advice = "" if set(mixed) & {"", *_MULTIPLES} else ", or give unit= without scale=, which reads each by its own"
        raise ReadingError(
            f"the pattern {_shown(reader)} takes numbers in several units:\n{mixture}\nLet the script print one{advice}"
        )
    return found


_MULTIPLES = ("k", "K", "M", "G", "T")
_BEHIND = re.compile(rf"([{''.join(_MULTIPLES)}])(?![A-Za-z])|\s?([A-Za-zµ]+(?:/s)?)(?![\w/])")


def _unit_behind(text: str) -> str:
    """Unit of time, size or rate at the start of a text, or a multiple (``k``), or ""."""
    match = _BEHIND.match(text)
    if match is None:
        return ""
    unit = match[2] or ""
    return match[1] or (unit if is_duration(unit) or is_size(unit) or is_rate(unit) else "")


def _reads_by_unit(reader: Reader, unit: str) -> bool:
    """Whether numbers with this unit are converted to the reader's unit; not if the reader has a scale."""
    if not unit or not reader.unit or reader.scale != 1:
        return False
    with contextlib.suppress(ConfigurationError):
        convert(1.0, unit, reader.unit)
        return True
    return False


_PACE = re.compile(r"(?<![\w.])(\d+\.?\d*)(?:([A-Za-z]+)/s|s/([A-Za-z]+))(?!\w)")


def _turned_round(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Match of a pattern with ``it/s`` where a progress bar of slow iterations prints ``s/it``, and vice versa."""
    for found in _PACE.finditer(line):
        if float(found[1]):
            unit = f"s/{found[2]}" if found[2] else f"{found[3]}/s"
            turned = f"{line[: found.start()]}{1 / float(found[1]):.9f}{unit}{line[found.end() :]}"
            if (match := pattern.search(turned)) is not None:
                return match
    return None


def _shown(reader: Reader) -> str:
    parts = [repr(part) for part in reader.source.split(metric.NUMBER)]
    return " + NUMBER + ".join(parts).removesuffix(" + ''").removeprefix("'' + ")


def _not_finite(pattern: re.Pattern[str], group: int | str, line: str) -> str | None:
    """The nan or inf in the place where the pattern wants a number, or None."""
    for found in _NOT_FINITE.finditer(line):
        for number in _IN_ITS_PLACE:
            match = pattern.search(line[: found.start()] + number + line[found.end() :])
            if match is not None and match.span(group) == (found.start(), found.start() + len(number)):
                return found[0]
    return None


def read_tensorboard(reader: Reader, place: Place) -> list[Found]:
    """Values of the tag ``reader.key``, by step, of the run in a folder, else of the runs below it."""
    try:
        importlib.import_module(_ACCUMULATOR)
    except ImportError as error:
        raise ReadingError(f"reading TensorBoard files needs its package: pip install tensorboard ({error})") from None
    folder = place.path(reader.source)
    there = sorted(folder.rglob("events.out.tfevents.*")) if folder.is_dir() else [folder]
    files = [file for file in there if place.is_of_this_launch(file)]
    if not files:
        older = f", but for {len(there)} of earlier runs" if there else ""
        raise ReadingError(f"{folder} has no event file{older}")
    tags, runs = dict[str, None](), dict[Path, list[Logged]]()
    for run, its_files in grouped((file.parent, file) for file in files).items():
        scalars, known = _scalars(its_files, reader.key)
        tags.update(dict.fromkeys(known))
        if scalars:
            runs[run] = scalars
    if not runs:
        raise ReadingError(f"{folder}: no tag {reader.key!r}; there are {', '.join(tags) or 'none'}")
    runs = {run: scalars for run, scalars in runs.items() if not any(above in runs for above in run.parents)}
    steps: dict[int, Path] = {}
    for run, scalars in runs.items():
        for before, now in itertools.pairwise(scalars):
            if now.step < before.step and now.wall_time < before.wall_time:
                raise ReadingError(
                    f"{run}: several processes have written {reader.key!r} at the same time, with step {now.step} in "
                    "both. Let one of them write it, or each into a folder of its own, and name that"
                )
        for step in {scalar.step for scalar in scalars}:
            if (other := steps.setdefault(step, run)) != run:
                one, another = (str(each.relative_to(folder)) for each in (other, run))
                names = [str(each.relative_to(folder)) for each in runs]
                raise ReadingError(
                    f"{folder}: {len(runs)} runs have the tag {reader.key!r}: {and_more(names, shown=_MOST_SHOWN)}. "
                    f"They are no single series: step {step} is in {one} and in {another}. Name the folder of one: "
                    f"tensorboard({str(Path(reader.source, one))!r}, {reader.key!r}); let the script itself set a name "
                    "that changes from run to run"
                )
    rows = [
        Row({"step": scalar.step, "value": scalar.value}, f"step {scalar.step} of {run.name}", f"step {scalar.step}")
        for run, scalars in sorted(runs.items(), key=lambda each: each[1][0].step)
        for scalar in scalars
    ]
    return _found(folder, rows, "value", reader, place)


_ACCUMULATOR = "tensorboard.backend.event_processing.event_accumulator"


class Logged(NamedTuple):
    step: int
    value: float
    wall_time: float


def _scalars(files: Sequence[Path], tag: str) -> tuple[list[Logged], list[str]]:
    """Values of a tag in the files of one run, as TensorBoard shows them with ``purge_step``; and all tags."""
    with tempfile.TemporaryDirectory() as folder:  # of these files alone: others in theirs are of earlier launches
        for file in files:
            Path(folder, file.name).symlink_to(file.resolve())
        events = importlib.import_module(_ACCUMULATOR).EventAccumulator(
            folder, size_guidance={"tensors": 0, "scalars": 0}
        )
        events.Reload()
    known = events.Tags()
    if tag in known["scalars"]:
        found = [Logged(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
    elif tag in known["tensors"]:
        make = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
        found = [
            Logged(event.step, float(make(event.tensor_proto).item()), event.wall_time) for event in events.Tensors(tag)
        ]
    else:
        found = []
    return found, [*known["scalars"], *known["tensors"]]


_LONGEST_CONTEXT = 80
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)

READERS: dict[str, Callable[[Reader, Place], list[Found]]] = {
    "stdout": read_stdout,
    "json": read_json,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "mllog": read_mllog,
    "tensorboard": read_tensorboard,
}
"""Kind of reader -> function that returns its values at a place, in order; it raises ReadingError if it cannot."""


def problem_with(reader: Reader) -> str:
    """The first error in a reader's arguments, found before anything is launched, or ""."""
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
    if reader.kind in ("json", "jsonl") and reader.key.count(_EACH) > (most := int(reader.kind == "json")):
        return (
            f"{reader.key!r} has more than {most} {_EACH}: read.json reads one list, and read.jsonl one number a line"
        )
    kind = METRIC_KINDS[reader.better]
    for name, kind_of in _WANTED.items():
        if kind_of.take(value := getattr(reader, name)) is None:
            return f"{name}={show(value)}; wanted {kind_of.words}"
    if reader.take and kind.shape == "series":
        return f"take={reader.take!r} makes one number, and better={reader.better!r} judges a series"
    if not isinstance(reader.step, str | None):
        return f"step={show(reader.step)}; wanted the name of a column, or None: no column is the step"
    for name, scalars in (("at", reader.at), ("identity", reader.identity), ("where", reader.where)):
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


def readings(plan: LaunchPlan) -> tuple[list[Observation], list[str]]:
    """Observations of all readers of a launch, and remarks on them."""
    found, remarks = [], dict[str, None]()
    for name, reader in plan.read.items():
        for rank in range(plan.processes) if reader.rank == "all" else [reader.rank]:
            place = Place(plan, rank)
            found.append(of_rank(rank, _observe(name, reader, place)))
            remarks.update(dict.fromkeys(f"{metric_key(name, reader.at)}: {remark}" for remark in place.remarks))
    return found, [*remarks]


def _observe(name: str, reader: Reader, place: Place) -> Observation:
    key = metric_key(name, reader.at)
    try:
        with limited():
            found = READERS[reader.kind](reader, place)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, csv.Error) as error:
        source = reader.source or "the output"
        raise ReadingError(f"{key}: cannot read {show(source)}: {error_text(error)}") from None
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
    values = [_number(key, reader, text.strip(), where) for text, where, _ in kept]
    values += [_number_behind(reader, text.strip()) for text, *_ in rest]
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
        beside=[context[:_LONGEST_CONTEXT] for *_, context in (*kept, *rest)] if is_curve else [],
        at=reader.at,
        identity=reader.defining,
        bounds=reader.bounds,
        taken_from=taken_from,
        curve_steps=(reader.first or 0) if is_curve else 0,
    )


def _number_behind(reader: Reader, text: str) -> float:
    try:
        number = _number("", reader, text, "")
    except ReadingError:
        return metric.LARGEST_NUMBER
    return number if abs(number) < metric.LARGEST_NUMBER else metric.LARGEST_NUMBER


def _number(key: str, reader: Reader, text: str, where: str) -> float:
    bare, _, unit = text.partition(" ")
    by_unit = _reads_by_unit(reader, unit)
    bare = bare if by_unit else text
    try:
        number = float(bare.replace(",", "") if _THOUSANDS.fullmatch(bare) else bare.replace("_", " _"))
    except ValueError:
        has_unit = unit and re.fullmatch(r"[\d.]+ \S+", text)
        advice = f"; unit={unit!r} without scale= reads it, or leave the unit out" if has_unit else ""
        raise ReadingError(f"{key}: {show(text)} is no number: {where}{advice}") from None
    if not math.isfinite(number):
        raise ReadingError(f"{key}: the value is {bare}: {where}")
    return convert(number, unit, reader.unit) if by_unit else number * reader.scale
