"""Reads what nccl-tests and rccl-tests print.

Each release has a table of its own: some have no columns for the operation or the root, the check is called ``error``
or ``#wrong``, ``-I`` adds four columns a side, and rccl-tests may measure one side only. So the header says what is
where.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench.errors import StoredFileError, show
from pytest_distbench.records.perf_output import PerfOutput, PerfRow

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
_NEXT_STEP = "Correct the line, or give the output of a whole run"

CPU_TIME_ONLY = "holds the CPU's time of each call (-C 1), not how long it lasts", "Measure again without -C 1"
"""A problem, and what to do."""

WRONG_NEXT_STEP = "Such numbers are none to be compared with: mend the run"


def looks_like_text(text: str) -> bool:
    """Whether this is what the tools print."""
    return any(_BEGIN.match(line) or _columns(line) for line in map(_bare, text.splitlines()))


def read_perf_text(text: str, path: Path) -> list[PerfOutput]:
    """The runs in a file, one after the other.

    Raises:
        StoredFileError: a line of a table is damaged, or a result was wrong; the message has its number.
    """
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
        raise StoredFileError(path, "holds no line of results: the run failed", "Give the output of a whole run")
    return found


def _bare(line: str) -> str:
    return _PREFIX.sub("", line).rstrip()


def _columns(line: str) -> list[str]:
    """The names in a table's header; none where the line is no header."""
    names = line.removeprefix("#").split() if line.startswith("#") else []
    return names if {"size", "count", "type", "algbw", "busbw"} <= {*names} else []


@dataclass
class _Run:
    """One run as it is read.

    Attributes:
        program: that was run.
        columns: of its table; none before its header.
        sides: in the order of the columns: ``out-of-place``, ``in-place``.
    """

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
                raise StoredFileError(place, *CPU_TIME_ONLY)
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
            raise StoredFileError(place, problem, _NEXT_STEP)
        head = dict(zip(names[: starts[0]], cells, strict=False))
        try:
            size, _ = int(head["size"]), int(head["count"])
            for i, side in enumerate(sides):
                begin = starts[0] + i * width
                body = dict(zip(names[starts[0] : starts[0] + width], cells[begin : begin + width], strict=True))
                _check_right(body, place)
                yield PerfRow(
                    size=size,
                    dtype=head["type"],
                    redop=head.get("redop", ""),
                    root=head.get("root", ""),
                    in_place=side == "in-place",
                    time_s=_number(body["time"]) / 1e6,
                    busbw=_number(body["busbw"]),
                )
        except ValueError:
            raise StoredFileError(place, f"{show(line.strip())} is no line of numbers", _NEXT_STEP) from None


def _number(cell: str) -> float:
    value = float(cell)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(cell)
    return value


def _check_right(cells: dict[str, str], place: Path) -> None:
    """Refuse wrong results. An ``error`` is a difference, which may be small: an asterisk says it is not."""
    found = cells.get("#wrong") or cells.get("error") or "N/A"
    if found == "N/A":
        return
    value = float(found.removesuffix("*"))
    _refuse_wrong(value if "#wrong" in cells or found.endswith("*") else 0, place)


def _refuse_wrong(number: float, place: Path) -> None:
    if number:
        raise StoredFileError(place, f"{number:g} wrong values", WRONG_NEXT_STEP)
