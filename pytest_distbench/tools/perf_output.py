"""Files that nccl-tests and rccl-tests left, and the bounds and baselines that their numbers become.

They are what these tools print, and their JSON (``-J FILE``, ``-Z json -x FILE``).

Each release prints a table of its own: some have no columns for the operation or the root, the check is called
``error`` or ``#wrong``, ``-I`` adds four columns a side, and rccl-tests may measure one side only. So the header says
what is where.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ConfigurationError, StoredFileError, show
from pytest_distbench.records.metric import BoundValue, Sample, Scalar, metric_key
from pytest_distbench.store.files import read_limited
from pytest_distbench.units import format_seconds

NCCL_DTYPES = {
    "float32": "float", "float16": "half", "float64": "double", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""What torch calls a type -> what these tools call it, where that differs."""

NCCL_REDOPS = {"product": "prod"}
"""The same of reduce operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfRow:
    """One message size, in place or not, as the tool names things; ``busbw`` is in GB/s."""

    size: int
    dtype: str
    redop: str
    root: str
    in_place: bool
    time_s: float
    busbw: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfOutput:
    """One run.

    Attributes:
        program: ``all_reduce_perf``; empty where the output does not say.
        ranks: of the group; None where the output does not say.
        device: of the first rank; empty where the output does not say.
        rows: in the order they were measured, at least one.
        is_whole: whether the tool came to its end.
    """

    program: str
    ranks: int | None
    device: str
    rows: Sequence[PerfRow]
    is_whole: bool


MAX_FILE_BYTES = 64 * 2**20
"""A larger file is no output of these tools."""

KNOWN = (
    "Known are the output of nccl-tests and rccl-tests, the JSON of nccl-tests (-J FILE) and of rccl-tests "
    "(-Z json -x FILE), and the output of 'distbench baseline export'"
)

_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>: ?|\d+: )")
"""Of mpirun --tag-output, and of srun --label."""

_BEGIN = re.compile(r"^# nThread \d+ nGpus \d+ ")
_PROGRAM = re.compile(r"^# Collective test starting: (\S+)")
_RANK = re.compile(r"^#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+\S+ device\s+\d+ \[[^]]*\] (.*)")
_WRONG_TOTAL = re.compile(r"^# Out of bounds values\s*:\s*(\d+)")
_END = re.compile(r"^# Avg bus bandwidth\s*:")
_SIDES = re.compile(r"out-of-place|in-place")
_LOG = re.compile(r"\b[NR]CCL (?:INFO|WARN|TRACE|ERROR|version)\b")
"""What NCCL_DEBUG prints between the lines of a table."""

_CPU_TIME = "cputime"
_AS_WRITTEN = "Give the file as the tool wrote it"
_WHOLE_RUN = "Give the output of a whole run"
_CORRECT = "Correct the line, or give the output of a whole run"
_CPU_TIME_ONLY = "holds the CPU's time of each call (-C 1), not how long it lasts", "Measure again without -C 1"
"""A problem, and what to do."""


def read_perf_output(path: Path) -> list[PerfOutput]:
    text = read_limited(path, MAX_FILE_BYTES, next_step=KNOWN).decode(errors="replace")
    if text.lstrip().startswith(("{", "[\n{", "[{")):
        return [read_perf_json(text, path)]
    if looks_like_text(text):
        return read_perf_text(text, path)
    raise StoredFileError(path, "of no format that can be imported", KNOWN)


def looks_like_text(text: str) -> bool:
    return any(_BEGIN.match(line) or _columns(line) for line in map(_bare, text.splitlines()))


def read_perf_text(text: str, path: Path) -> list[PerfOutput]:
    runs: list[_Run] = []
    for number, line in enumerate(map(_bare, text.splitlines()), 1):
        place = Path(f"{path}:{number}")
        if (begins := _PROGRAM.match(line)) or not runs:
            runs.append(_Run(begins[1] if begins else ""))
        elif _BEGIN.match(line) and runs[-1].has_begun:
            runs.append(_Run(""))
        runs[-1].read(line, place)
    found = [run.output() for run in runs if run.rows]
    if not found:
        raise StoredFileError(path, "holds no line of results: the run failed", _WHOLE_RUN)
    return found


def _bare(line: str) -> str:
    return _PREFIX.sub("", line).rstrip()


def _columns(line: str) -> list[str]:
    names = line.removeprefix("#").split() if line.startswith("#") else []
    return names if {"size", "count", "type", "algbw", "busbw"} <= {*names} else []


@dataclass
class _Run:
    program: str
    has_begun: bool = False
    columns: list[str] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    rows: list[PerfRow] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    device: str = ""
    is_whole: bool = False

    def read(self, line: str, place: Path) -> None:
        if line.startswith("#"):
            self._read_comment(line, place)
        elif line and self.columns and not self.is_whole and not _LOG.search(line):
            self.rows.extend(self._rows_of(line, place))

    def output(self) -> PerfOutput:
        most = max((self.groups.count(group) for group in self.groups), default=None)
        return PerfOutput(program=self.program, ranks=most, device=self.device, rows=self.rows, is_whole=self.is_whole)

    def _read_comment(self, line: str, place: Path) -> None:
        if _BEGIN.match(line):
            self.has_begun = True
        elif rank := _RANK.match(line):
            self.groups.append(rank[1] or "0")
            self.device = self.device or rank[2].strip()
        elif wrong := _WRONG_TOTAL.match(line):
            _refuse_wrong(int(wrong[1]), place)
        elif _END.match(line):
            self.is_whole = True
        elif columns := _columns(line):
            if _CPU_TIME in columns:
                raise StoredFileError(place, *_CPU_TIME_ONLY)
            self.columns = columns
            number = columns.count("time")
            if len(self.sides) != number:
                problem = f"has {number} time columns, and the line above names {', '.join(self.sides) or 'none'}"
                raise StoredFileError(place, problem, "Give the output with all lines that begin with #")
        elif sides := _SIDES.findall(line):
            self.sides = sides

    def _rows_of(self, line: str, place: Path) -> Iterator[PerfRow]:
        cells = line.split()
        names = [name for name in self.columns if name != "timestamp"]
        if len(self.columns) > len(names):
            cells = cells[:-2]  # date and time
        starts = [i for i, name in enumerate(names) if name == "time"]
        width = (len(names) - starts[0]) // len(starts)
        sides: Sequence[str] = self.sides
        if len(cells) == starts[0] + width < len(names):
            sides = ["in-place"]  # a replayed trace leaves the other half blank
        elif len(cells) != len(names):
            problem = f"{show(line.strip())} has {len(cells)} columns, its table has {len(names)}"
            raise StoredFileError(place, problem, _CORRECT)
        head = dict(zip(names[: starts[0]], cells, strict=False))
        try:
            int(head["size"]), int(head["count"])
            for i, side in enumerate(sides):
                begin = starts[0] + i * width
                body = dict(zip(names[starts[0] : starts[0] + width], cells[begin : begin + width], strict=True))
                _check_right(body, place)
                yield _row(head, body["time"], body["busbw"], in_place=side == "in-place")
        except ValueError:
            raise StoredFileError(
                place,
                f"{show(line.strip())} is no line of numbers",
                "Correct the line, or give the output of a whole run",
            ) from None


def _check_right(cells: dict[str, str], place: Path) -> None:
    """Refuse wrong results. An ``error`` is a difference, which may be small: an asterisk says it is not."""
    found = cells.get("#wrong") or cells.get("error") or "N/A"
    if found == "N/A":
        return
    value = float(found.removesuffix("*"))
    _refuse_wrong(value if "#wrong" in cells or found.endswith("*") else 0, place)


def _refuse_wrong(number: float, place: Path) -> None:
    if number:
        raise StoredFileError(place, f"{number:g} wrong values", "Such numbers cannot be compared: fix the run")


def read_perf_json(text: str, path: Path) -> PerfOutput:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        place = Path(f"{path}:{error.lineno}")
        raise StoredFileError(place, f"no JSON: {error.msg}; the run may have been cut off", _AS_WRITTEN) from None
    except RecursionError:
        raise StoredFileError(path, "no JSON of these tools: too deep", _AS_WRITTEN) from None
    if isinstance(document, dict) and isinstance(document.get("results"), list):
        output = _read(path, "results", document["results"], _rows_of_nccl)
        config = document.get("config")
        config = config if isinstance(config, dict) else {}
        devices = [d for d in config.get("devices") or document.get("devices") or [] if isinstance(d, dict)]
        args = document.get("args") or [""]
        return PerfOutput(
            program=Path(str(args[0])).name,
            ranks=_ranks_of_nccl(config, devices),
            device=str(devices[0].get("device_info", "")) if devices else "",
            rows=output,
            is_whole="end_time" in document,
        )
    if isinstance(document, list) and document and all(isinstance(one, dict) and "busBw" in one for one in document):
        first = document[0]
        ranks = [first.get("ranks", 1), first.get("gpusPerRank", first.get("gpus"))]
        known = all(isinstance(n, int) for n in ranks)
        return PerfOutput(
            program=str(first.get("name", "")),
            ranks=math.prod(ranks) if known else None,
            device="",
            rows=_read(path, "", document, _rows_of_rccl),
            is_whole=True,
        )
    raise StoredFileError(path, "no JSON that nccl-tests or rccl-tests write", _AS_WRITTEN)


def _ranks_of_nccl(config: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> int | None:
    """A rank per GPU: the file may name one device of each process only."""
    processes = len({(device.get("hostname"), device.get("pid")) for device in devices})
    threads, gpus = config.get("nthreads"), config.get("ngpus")
    return processes * threads * gpus if processes and isinstance(threads, int) and isinstance(gpus, int) else None


def _read(
    path: Path, name: str, found: Sequence[Any], rows_of: Callable[[Mapping[str, Any], Path], list[PerfRow]]
) -> list[PerfRow]:
    """The rows of every result, the damaged one named."""
    rows = []
    for i, one in enumerate(found):
        place = Path(f"{path}: {name}[{i}]")
        try:
            rows += rows_of(one, place)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise StoredFileError(place, f"damaged: {what} in {show(one)}", _AS_WRITTEN) from None
    if not rows:
        raise StoredFileError(path, "holds no results: the run failed", _WHOLE_RUN)
    return rows


def _rows_of_nccl(one: Mapping[str, Any], place: Path) -> list[PerfRow]:
    rows = []
    for key in ("out_of_place", "in_place"):
        side = one[key]
        if side is None:
            continue
        if "cpu_time" in side:
            raise StoredFileError(place, *_CPU_TIME_ONLY)
        _refuse_wrong(side["nwrong"], place)
        row = _row(one, side["time"], side["bus_bw"], in_place=key == "in_place")
        rows.append(row)
    return rows


def _rows_of_rccl(one: Mapping[str, Any], place: Path) -> list[PerfRow]:
    _refuse_wrong(0 if one["wrong"] == "N/A" else float(one["wrong"]), place)
    return [_row(one, one["time"], one["busBw"], in_place=bool(int(one["inPlace"])))]


def _row(head: Mapping[str, Any], time_us: object, busbw: object, *, in_place: bool) -> PerfRow:
    return PerfRow(
        size=int(_number(head["size"])),
        dtype=str(head["type"]),
        redop=str(head.get("redop", "")),
        root=str(head.get("root", "")).strip(),
        in_place=in_place,
        time_s=_number(time_us) / 1e6,
        busbw=_number(busbw),
    )


def _number(value: object) -> float:
    """A number of zero or more; in a table it is a text."""
    number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{show(value)} is no number")
    return number


_OUR_REDOPS = {theirs: ours for ours, theirs in NCCL_REDOPS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows are taken.

    Attributes:
        dtype: as torch or as the tool calls it; empty: the only one there is.
        redop: empty: the only one there is.
        most: bytes of the largest; None: no limit.
    """

    in_place: bool
    dtype: str = ""
    redop: str = ""
    least: int = 1
    most: int | None = None

    def of(self, output: PerfOutput) -> list[PerfRow]:
        dtype = NCCL_DTYPES.get(self.dtype, self.dtype)
        redop = NCCL_REDOPS.get(self.redop, self.redop)
        side = [row for row in output.rows if row.in_place == self.in_place]
        wanted = [
            row
            for row in side
            if (not dtype or row.dtype == dtype)
            and (not redop or row.redop == redop)
            and self.least <= row.size
            and (self.most is None or row.size <= self.most)
        ]
        if not wanted:
            found = ", ".join(sorted({f"{row.dtype} {row.redop}".strip() for row in output.rows}))
            raise ConfigurationError(
                f"no row is {'in place' if self.in_place else 'out of place'} and as asked for; there are {found} of "
                f"{min(row.size for row in output.rows)} to {max(row.size for row in output.rows)} B"
            )
        for option, names in (
            ("--dtype", {row.dtype for row in wanted}),
            ("--redop", {row.redop for row in wanted}),
            ("a file of one", {f"root {row.root}" for row in wanted}),
        ):
            if len(names) > 1:
                raise ConfigurationError(f"the rows are of {', '.join(sorted(names))}: give {option}")
        return wanted


def bounds_of(runs: Sequence[Sequence[PerfRow]], *, metric: str, margin: float) -> dict[str, BoundValue]:
    if metric == "busbw":
        found = {size: statistics.median(values) for size, values in _by_size(runs, lambda row: row.busbw).items()}
        return {_key(metric, size): f">= {value * (1 - margin):.4g} GB/s" for size, value in found.items() if value}
    times = {size: statistics.median(values) for size, values in _by_size(runs, lambda row: row.time_s).items()}
    return {_key(metric, size): f"<= {format_seconds(value * (1 + margin))}" for size, value in times.items() if value}


def baselines_of(runs: Sequence[Sequence[PerfRow]], *, in_place: bool) -> dict[str, list[Sample]]:
    redop = _OUR_REDOPS.get(runs[0][0].redop, runs[0][0].redop)
    identity: dict[str, Scalar] = {"in_place": in_place, **({"redop": redop} if redop not in ("", "none") else {})}
    return {
        _key("latency", size): [
            Sample(
                name="latency",
                unit="s",
                better="lower",
                at={"message_bytes": size},
                identity=identity,
                value=float(f"{value:.4g}"),
            )
            for value in times
        ]
        for size, times in _by_size(runs, lambda row: row.time_s).items()
        if len(times) == len(runs) and all(times)
    }


def _by_size(runs: Iterable[Iterable[PerfRow]], value: Callable[[PerfRow], float]) -> Mapping[int, list[float]]:
    found: dict[int, list[float]] = {}
    for rows in runs:
        cycles: dict[int, list[float]] = {}
        for row in rows:
            cycles.setdefault(row.size, []).append(value(row))
        for size, values in cycles.items():
            found.setdefault(size, []).append(statistics.median(values))
    return dict(sorted(found.items()))


def _key(metric: str, size: int) -> str:
    return metric_key(metric, {"message_bytes": size})
