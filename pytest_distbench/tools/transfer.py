"""``distbench baseline export`` and ``import``: baseline files as one file, and back; and numbers of nccl-tests."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pytest_distbench.commands import Subcommand, choose_baselines, read_chosen
from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError, show
from pytest_distbench.records.case import BaselineEntry, BaselineName, Conditions, key_text
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import BoundValue, Sample, Scalar, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.report.tables.table import ColumnType, DataTable, write_csv, write_parquet
from pytest_distbench.store.baselines import BASELINE_FILES, MAX_FILE_BYTES, BaselineFile, Baselines, encode
from pytest_distbench.store.entries import selection
from pytest_distbench.store.files import open_regular, read_limited, replace_file
from pytest_distbench.units import as_share, counted, format_seconds, parse_bytes

_WANTED = (
    "Give the output of 'distbench baseline export --format json', or a baseline directory; with --as bounds or "
    "--as baseline the output of nccl-tests or rccl-tests"
)


def write_json(files: Iterable[BaselineFile], out: BinaryIO) -> None:
    out.writelines(encode(file) + b"\n" for file in files)


def exported_baselines(source: Path) -> Iterator[tuple[str, BaselineFile]]:
    """Read the baselines of an exported JSON file or a baseline directory, one at a time, each with its place."""
    if source.is_dir():
        for platform in Baselines(source, "").platforms():
            yield from ((f"{source}, {platform}", file) for file in Baselines(source, platform).read_all())
        return
    try:
        with open_regular(source, next_step=_WANTED) as lines:
            number = 0
            while line := lines.readline(MAX_FILE_BYTES + 1):
                number += 1
                place = f"{source}:{number}"
                yield place, BASELINE_FILES.parse(line, Path(place), next_step=_WANTED)
    except OSError as error:
        raise StoredFileError(source, f"cannot read: {error.strerror or error}", _WANTED) from error


BASELINE_COLUMNS: Mapping[str, ColumnType] = {
    "platform": str, "test": str, "key": str, "world_size": int, "backend": str, "launcher": str, "workload": str,
    "metric": str, "unit": str, "better": str, "launch": int, "value": float,
}  # fmt: skip
"""Columns of exported baselines; ``metric`` is the metric's name and point."""


def baseline_rows(files: Iterable[BaselineFile]) -> DataTable:
    def rows() -> Iterator[tuple[object, ...]]:
        for file in files:
            own, under = file.entry, file.entry.conditions
            case = (file.platform, file.test, file.key, under.world_size, under.backend, under.launcher, own.workload)
            for key, metric in own.metrics.items():
                yield from ((*case, key, m.unit, m.better, launch, m.value) for launch, m in enumerate(metric))

    return DataTable(BASELINE_COLUMNS, rows())


_FORMATS: Mapping[str, Callable[[Iterable[BaselineFile], BinaryIO], None]] = {
    "json": write_json,
    "csv": lambda files, out: write_csv(baseline_rows(files), out),
    "parquet": lambda files, out: write_parquet(baseline_rows(files), out),
}
"""Writers by format; only JSON can be imported again."""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="json",
        help="json (default): a baseline per line, for import; csv, parquet: a value per row",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    choose_baselines(parser)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="FILE|DIR",
        type=Path,
        nargs="+",
        help="a file of export --format json, a baseline directory, or a run",
    )
    parser.add_argument(
        "--existing", choices=("keep", "replace"), default="keep", help="baselines that exist already (default: keep)"
    )
    choose_baselines(parser)
    group = parser.add_argument_group(
        "of nccl-tests and rccl-tests",
        "their output, or their JSON; several files are several runs of the same benchmark",
    )
    group.add_argument(
        "--as", dest="kind", choices=("bounds", "baseline"), default="", help="what to make of the numbers"
    )
    for name, taken, default, text in (
        ("test", "NODEID", "", "test that gets them: 'suites/a.py::test_b[float32-ws8]'"),
        ("world-size", "N", None, "ranks of that test (default: as the file says)"),
        ("backend", "NAME", "nccl", "of that test (default: nccl)"),
        ("launcher", "NAME", "warm", "of that test (default: warm)"),
        ("metric", ("latency", "busbw"), "latency", "metric to bound (default: latency)"),
        ("margin", "X", "0%", "margin of the bounds towards worse: 10%% or 0.1 (default: 0%%)"),
        ("column", ("in-place", "out-of-place"), "in-place", "columns to take (default: in-place)"),
        ("dtype", "NAME", "", "if the files have rows of several"),
        ("redop", "NAME", "", "if the files have rows of several"),
        ("min-size", "SIZE", "1", "smallest message, such as 64KiB"),
        ("max-size", "SIZE", "", "largest message, such as 64MiB"),
    ):
        given: dict[str, Any] = {"choices": taken} if isinstance(taken, tuple) else {"metavar": taken}
        group.add_argument(f"--{name}", default=default, type=int if default is None else str, help=text, **given)


def _export(options: argparse.Namespace) -> Iterator[str]:
    number = 0

    def count_files() -> Iterator[BaselineFile]:
        nonlocal number
        for file in read_chosen(options):
            number += 1
            yield file

    write = _FORMATS[options.format]
    if options.output is None:
        if options.format == "parquet":
            raise ConfigurationError("export --format parquet is no text: give -o FILE")
        write(count_files(), sys.stdout.buffer)
        return
    with replace_file(options.output, next_step="Give -o a writable place") as out:
        write(count_files(), out)
    yield f"{counted(number, 'baseline')} written to {options.output}"


def _import(options: argparse.Namespace) -> Iterator[str]:
    if options.kind:
        yield from _import_numbers(options)
        return
    choice = selection(options.parts)
    counts = {"new": 0, "replaced": 0, "kept": 0}

    def chosen() -> Iterator[tuple[str, BaselineFile]]:
        for source in options.source:
            for place, file in exported_baselines(source):
                if choice(file.name) and options.platform in ("", file.platform):
                    yield place, file

    seen: dict[BaselineName, tuple[str, bytes]] = {}
    with contextlib.suppress(StoredFileError):  # reported below, when what stands before it is in
        for place, file in chosen():
            digest = hashlib.blake2b(msgspec.json.encode(file.entry, order="sorted")).digest()
            first, known = seen.setdefault(file.name, (place, digest))
            if known != digest:
                raise DistbenchError(
                    f"{first} and {place} contradict each other: both contain {file.name} of {file.platform}, with "
                    f"different values, so nothing was imported. Remove one of them"
                )
    for _, file in chosen():
        store = Baselines(options.baselines, file.platform)
        stored = store.read(file.test, file.key)
        done = "new" if stored is None else "kept" if stored == file.entry or options.existing == "keep" else "replaced"
        if done != "kept":
            store.write(file.test, file.key, file.entry, sync=False)
            yield f"{done}  {file.platform}  {file.name}"
        counts[done] += 1
    if not sum(counts.values()):
        of = f" of platform {options.platform}" if options.platform else ""
        sources = ", ".join(map(str, options.source))
        raise DistbenchError(f"{sources}: no matching baseline{of}, so nothing was imported")
    yield ", ".join(f"{number} {what}" for what, number in counts.items())


_TEST = re.compile(r"(?P<test>[^[\]]+::[^[\]]+?)(?:\[(?P<case>.*)\])?")


def _import_numbers(options: argparse.Namespace) -> Iterator[str]:
    """Import numbers of nccl-tests and rccl-tests as bounds or baseline of a test, by ``--as``."""
    name = _name(options)
    in_place = options.column == "in-place"
    least = parse_bytes(options.min_size)
    most = parse_bytes(options.max_size) if options.max_size else math.inf
    margin = as_share(options.margin)
    if margin is None or not 0 <= margin < 1:
        raise ConfigurationError(
            f"--margin {options.margin!r}: wanted a fraction such as 10% or 0.1, from 0 to below 1"
        )
    outputs = [output for source in options.source for output in read_perf_output(source)]
    chosen = [
        choose_rows(output, in_place=in_place, dtype=options.dtype, redop=options.redop, least=least, most=most)
        for output in outputs
    ]
    ranks = _ranks(outputs, options.world_size)
    first = chosen[0][0]
    runs = counted(len(outputs), "run")
    facts = [outputs[0].program, f"{ranks} ranks", outputs[0].device, first.dtype, first.redop.replace("none", "")]
    yield f"{runs}: {', '.join(filter(None, [*facts, options.column]))}"
    if not all(output.is_whole for output in outputs):
        yield "? a run has no summary at its end; it may be cut off, and its results were not checked"
    made: Mapping[str, Any]
    if options.kind == "bounds":
        made = bounds_of(chosen, metric=options.metric, margin=margin)
    elif len(outputs) < 2:
        raise ConfigurationError(
            "--as baseline: the noise of one run is unknown: give the files of several runs, or --as bounds"
        )
    else:
        made = baselines_of(chosen, in_place=in_place)
        yield "these tools time calls in a loop, the sweep times each call, so small messages take longer there"
    if left_out := len({row.size for run in chosen for row in run}) - len(made):
        yield f"{counted(left_out, 'size')} left out: printed as 0, or not in every run"
    yield _store(options, name, ranks, made)


def _store(options: argparse.Namespace, name: BaselineName, ranks: int, made: Mapping[str, Any]) -> str:
    store = Baselines(options.baselines, name.platform)
    stored = store.read(name.test, name.key)
    content = stored or BaselineEntry(
        workload="",
        conditions=Conditions(world_size=ranks, backend=options.backend, launcher=options.launcher),
        software={},
        metrics={},
    )
    if (stored_ranks := content.conditions.world_size) != ranks:
        raise ConfigurationError(f"{name} is stored with {stored_ranks} ranks; these numbers are of {ranks}")
    field = "bounds" if options.kind == "bounds" else "metrics"
    before: dict[str, Any] = getattr(content, field)
    both = {**before, **made} if options.existing == "replace" else {**made, **before}
    kept = sum(key in before for key in made) if options.existing == "keep" else 0
    changed = sum(before.get(key) != value for key, value in both.items())
    if changed:
        store.write(name.test, name.key, replace(content, **{field: both}), sync=False)
    there = f", {kept} there already were kept (--existing replace)" if kept else ""
    done = "new" if stored is None else "changed" if changed else "kept"
    return f"{done}  {name.platform}  {name}: {changed} {field}{there}"


def _name(options: argparse.Namespace) -> BaselineName:
    lacking = [option for option in ("test", "platform") if not getattr(options, option)]
    if lacking:
        raise ConfigurationError(
            f"import --as {options.kind}: such files do not name the test and the platform: give "
            f"{' and '.join(f'--{option}' for option in lacking)}; 'distbench baseline list' shows both"
        )
    found = _TEST.fullmatch(options.test)
    if found is None:
        raise ConfigurationError(
            f"--test {options.test!r}: wanted a node id such as 'suites/a.py::test_b[float32-ws8]'"
        )
    key = key_text(found["case"] or "", options.backend, options.launcher)
    return BaselineName(platform=options.platform, test=found["test"], key=key)


def _ranks(outputs: list[PerfOutput], given: int | None) -> int:
    for what, found in (
        # all_reduce_perf, all_reduce_perf_mpi and AllReduce are one
        ("programs", {re.sub("[^a-z]", "", o.program.partition("_perf")[0].lower()) for o in outputs if o.program}),
        ("numbers of ranks", {output.ranks for output in outputs if output.ranks is not None}),
    ):
        if len(found) > 1:
            raise ConfigurationError(
                f"the runs are of several {what}, {', '.join(map(str, sorted(found, key=str)))}: import one"
            )
    said = next((output.ranks for output in outputs if output.ranks is not None), None)
    if given is not None and said is not None and given != said:
        raise ConfigurationError(f"--world-size {given}: the numbers are of {said} ranks")
    if (ranks := given if given is not None else said) is None or ranks < 1:
        raise ConfigurationError("the files do not say how many ranks there were: give --world-size N")
    return ranks


EXPORT = Subcommand("write all values of all launches into one file", _add_export, _export)
IMPORT = Subcommand(
    "add baselines of a file or another directory, or numbers of nccl-tests and rccl-tests", _add_import, _import
)


NCCL_DTYPES = {
    "float32": "float", "float16": "half", "float64": "double", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""dtypes: torch name -> name in nccl-tests and rccl-tests, if it differs."""

NCCL_REDOPS = {"product": "prod"}  # the same of reduce operations


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfRow:
    """A row of the tool's table: one message size, in place or not, under the tool's names; ``busbw`` in GB/s."""

    size: int
    dtype: str
    redop: str
    root: str
    in_place: bool
    time_s: float
    busbw: float


MAX_OUTPUT_BYTES = 64 * 2**20  # a larger file is no output of these tools

KNOWN = (
    "Known are the output of nccl-tests and rccl-tests, the JSON of nccl-tests (-J FILE) and of rccl-tests "
    "(-Z json -x FILE), and the output of 'distbench baseline export'"
)

_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>: ?|\d+: )")  # of mpirun --tag-output, and of srun --label

_BEGIN = re.compile(r"^# nThread \d+ nGpus \d+ ")
_PROGRAM = re.compile(r"^# Collective test starting: (\S+)")
_RANK = re.compile(r"^#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+\S+ device\s+\d+ \[[^]]*\] (.*)")
_WRONG_TOTAL = re.compile(r"^# Out of bounds values\s*:\s*(\d+)")
_END = re.compile(r"^# Avg bus bandwidth\s*:")
_SIDES = re.compile(r"out-of-place|in-place")
_LOG = re.compile(r"\b[NR]CCL (?:INFO|WARN|TRACE|ERROR|version)\b")
"""Lines of NCCL_DEBUG between the lines of a table."""

_CPU_TIME = "cputime"
_AS_WRITTEN = "Give the file as the tool wrote it"
_WHOLE_RUN = "Give the output of a whole run"
_CORRECT = "Correct the line, or give the output of a whole run"
_CPU_TIME_ONLY = "holds the CPU's time of each call (-C 1), not how long it lasts", "Measure again without -C 1"
"""The problem of a file with CPU times, and what to do."""


def read_perf_output(path: Path) -> Sequence[PerfOutput]:
    text = read_limited(path, MAX_OUTPUT_BYTES, next_step=KNOWN).decode(errors="replace")
    if text.lstrip().startswith(("{", "[\n{", "[{")):
        return [read_perf_json(text, path)]
    if looks_like_text(text):
        return read_perf_text(text, path)
    raise StoredFileError(path, "of no format that can be imported", KNOWN)


def looks_like_text(text: str) -> bool:
    return any(_BEGIN.match(line) or _columns(line) for line in map(_bare, text.splitlines()))


def read_perf_text(text: str, path: Path) -> Sequence[PerfOutput]:
    runs: list[PerfOutput] = []
    for number, line in enumerate(map(_bare, text.splitlines()), 1):
        place = Path(f"{path}:{number}")
        if (begins := _PROGRAM.match(line)) or not runs:
            runs.append(PerfOutput(program=begins[1] if begins else ""))
        elif _BEGIN.match(line) and runs[-1].has_begun:
            runs.append(PerfOutput())
        runs[-1].read(line, place)
    if not any(run.rows for run in runs):
        raise StoredFileError(path, "holds no line of results: the run failed", _WHOLE_RUN)
    return [run for run in runs if run.rows]


def _bare(line: str) -> str:
    return _PREFIX.sub("", line).rstrip()


def _columns(line: str) -> list[str]:
    names = line.removeprefix("#").split() if line.startswith("#") else []
    return names if {"size", "count", "type", "algbw", "busbw"} <= {*names} else []


@dataclass(kw_only=True)
class PerfOutput:
    """The output of one run of nccl-tests or rccl-tests, as far as it was read.

    Attributes:
        program: name of the program, such as ``all_reduce_perf``, or "" if the output does not say.
        ranks: number of ranks, or None if the output does not say.
        device: device of the first rank, or "" if the output does not say.
        rows: rows in the order they were measured, at least one.
        is_whole: whether the tool came to its end.
        groups: name of a group -> number of its ranks.
    """

    program: str = ""
    ranks: int | None = None
    device: str = ""
    rows: list[PerfRow] = field(default_factory=list)
    is_whole: bool = False
    has_begun: bool = False
    columns: list[str] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    groups: Counter[str] = field(default_factory=Counter)

    def read(self, line: str, place: Path) -> None:
        if not line.startswith("#"):
            if line and self.columns and not self.is_whole and not _LOG.search(line):
                self.rows.extend(self._rows_of(line, place))
        elif _BEGIN.match(line):
            self.has_begun = True
        elif rank := _RANK.match(line):
            self.groups[rank[1] or "0"] += 1
            self.ranks = max(self.groups.values())
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
                # An ``error`` is a difference, which may be small: an asterisk says it is not.
                wrong = body.get("#wrong") or body.get("error") or "N/A"
                if wrong != "N/A":
                    value = float(wrong.removesuffix("*"))
                    _refuse_wrong(value if "#wrong" in body or wrong.endswith("*") else 0, place)
                yield _row(head, body["time"], body["busbw"], in_place=side == "in-place")
        except ValueError:
            raise StoredFileError(place, f"{show(line.strip())} is no line of numbers", _CORRECT) from None


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
        # A rank per GPU: the file may name one device of each process only.
        processes = len({(device.get("hostname"), device.get("pid")) for device in devices})
        threads, gpus = config.get("nthreads"), config.get("ngpus")
        return PerfOutput(
            program=Path(str(args[0])).name,
            ranks=processes * threads * gpus
            if processes and isinstance(threads, int) and isinstance(gpus, int)
            else None,
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


def _read(
    path: Path, name: str, found: Sequence[Any], rows_of: Callable[[Mapping[str, Any], Path], list[PerfRow]]
) -> list[PerfRow]:
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
        rows.append(_row(one, side["time"], side["bus_bw"], in_place=key == "in_place"))
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
    """Convert a number of 0 or more, which is text in a table; ValueError for anything else."""
    number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{show(value)} is no number")
    return number


_OUR_REDOPS = {theirs: ours for ours, theirs in NCCL_REDOPS.items()}


def choose_rows(
    output: PerfOutput, *, in_place: bool, dtype: str = "", redop: str = "", least: int = 1, most: float = math.inf
) -> list[PerfRow]:
    """The rows of one dtype and one reduce op, in torch's or the tool's names; "" stands for the only one there is.

    Args:
        least: bytes of the smallest message; ``most``: of the largest.
    """
    dtype, redop = NCCL_DTYPES.get(dtype, dtype), NCCL_REDOPS.get(redop, redop)
    wanted = [
        row
        for row in output.rows
        if row.in_place == in_place
        and dtype in ("", row.dtype)
        and redop in ("", row.redop)
        and least <= row.size <= most
    ]
    if not wanted:
        found = ", ".join(sorted({f"{row.dtype} {row.redop}".strip() for row in output.rows}))
        sizes = [row.size for row in output.rows]
        raise ConfigurationError(
            f"no row is {'in place' if in_place else 'out of place'} and as asked for; there are {found} of "
            f"{min(sizes)} to {max(sizes)} B"
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
    is_rate = metric == "busbw"
    values = _by_size(runs, lambda row: row.busbw if is_rate else row.time_s)
    found = {size: statistics.median(each) for size, each in values.items()}
    return {
        _key(metric, size): f">= {v * (1 - margin):.4g} GB/s" if is_rate else f"<= {format_seconds(v * (1 + margin))}"
        for size, v in found.items()
        if v
    }


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
    cycles = (grouped((row.size, value(row)) for row in rows) for rows in runs)
    found = grouped((size, statistics.median(values)) for run in cycles for size, values in run.items())
    return dict(sorted(found.items()))


def _key(metric: str, size: int) -> str:
    return metric_key(metric, {"message_bytes": size})
