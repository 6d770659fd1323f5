"""Is a slowdown red on a shared machine, and healthy code green? Stored baselines, screened and confirmed in turns.

    python benchmarks/confirmation.py PART [--runs N] [--out FILE] [--show]

Each part runs its cells in turns until every one has N runs, and prints a table of all that the file holds. A run is
one line of JSON in the file, so what was interrupted goes on where it was; ``--show`` only prints.

- *healthy*: the default suites (``suites/``), unchanged;
- *planted*: everything slowed by 20 %, in turns in any case: does the code become slower by as much as was meant? Where
  not, on a quiet machine, :data:`PLANTED` is to be changed;
- *slowed*: a body, a sweep and a training (``slowed/``) whose code does 20 % and 10 % more work;
- *machine*: the same, unchanged, on a machine that became slower as a whole: under a CPU quota of 70 %, and with one
  core taken by another process;
- *scaling*: a training on one worker and on two, slowed by nothing up to 50 % on two alone: its efficiency falls;
- *against*: the same under ``--distbench-against HEAD``;
- *small*: a training step of 20 ms at a tolerance of 2 %, in which 3 % and 5 % more is computed, or waited for;
- *power*: a sweep, a training and a script of seconds, slowed by nothing up to 50 %, on the machine as it is and beside
  work that comes and goes. Hours.

Work that comes and goes are busy loops that compute and pause for seconds, each in a session of its own. A baseline is
recorded beside as many of them as drawn from 0, ``--loops`` and twice as many, and each run beside as many as drawn
anew; none under *quiet* and under *machine*. A baseline serves some runs (:data:`RUNS_PER_BASELINE`).

The project is a git repository in a temporary folder: its baselines are committed, what follows differs from that
commit in a file that is not. Slower code works on after each iteration, for a share of the time that this took. A rank
that works keeps the other waiting besides, so that less than the share is planted (:data:`PLANTED`).

Columns: runs; those that were *red*, *environment* or *inconclusive*, or had *low power* (the noise would have hidden
the tolerance); *confirmed*: cases per run that ran as A/B; their *launches* and *pairs*, the mean of runs; *seconds*
and *longest*: until the verdict, of all of pytest; *A/B s*: a run's seconds of confirmation; *stored* and *A/B*: the
change against the baseline and by A/B, medians.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from busy_neighbours import beside, busy_loop, tell
from repository import ROOT, Repository, end_by_sigterm_too

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout

SLOWED = ROOT / "benchmarks" / "slowed"
BUSY, QUIET = "work that comes and goes", "quiet"
QUOTA, TAKEN = "CPU quota of 70 %", "one core taken"
CPU_CONTROLLER = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 5_000
"""Short, so that the quota slows iterations and does not only pause between them."""

RUNS_PER_BASELINE = {"suites": 10, "slowed": 5}
PLANTED = {"body": 0.84, "sweep": 0.77, "training": 0.81, "script": 0.63}
"""Of a slowdown so much is planted to make it: in *planted*, 20 % made 23.8, 26.1, 24.6 and 31.9 % with 1.0 here."""

PATIENCE_S = 30.0
"""That the last process of a control group is given to end."""


class Cell(NamedTuple):
    """What is run again and again."""

    case: str
    beside: str
    slowdown: float = 0.0

    @property
    def project(self) -> str:
        return "suites" if self.case == "suites" else "slowed"


PARTS: Mapping[str, Sequence[Cell]] = {
    "healthy": [Cell("suites", BUSY)],
    "planted": [Cell(case, QUIET, 0.2) for case in ("body", "sweep", "training", "script", "efficiency")],
    "slowed": [Cell(case, BUSY, share) for share in (0.2, 0.1) for case in ("body", "sweep", "training")],
    "machine": [Cell(case, how) for how in (QUOTA, TAKEN) for case in ("body", "sweep", "training")],
    "scaling": [Cell("efficiency", BUSY, share) for share in (0.0, 0.1, 0.2, 0.5)],
    "against": [Cell("efficiency", BUSY, share) for share in (0.0, 0.1)],
    "small": [
        *(Cell("small", QUIET, share) for share in (0.0, 0.03, 0.05)),
        Cell("waiting", QUIET, 0.05),
    ],
    "power": [
        Cell(case, how, share)
        for share in (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
        for how in (QUIET, BUSY)
        for case in ("sweep", "training", "script")
    ],
}


OPTIONS = {
    "planted": ["--distbench-confirm=always:300"],
    "against": ["--distbench-against=HEAD"],
    "small": ["--distbench-tolerance=2%", "--distbench-confirm=always:120"],
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One run. Numbers of cases, but ``seconds`` and ``turns_s``; changes are of the clock that became slowest."""

    part: str
    case: str
    beside: str
    slowdown: float
    recorded_loops: int
    loops: int
    seconds: float
    red: int
    machine: int
    open: int
    unseen: int
    confirmed: int
    turns_s: float
    launches: int
    pairs: int
    suspicion: float
    stored: float | None = None
    in_turns: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def cell(self) -> Cell:
        return Cell(self.case, self.beside, self.slowdown)


class Project:
    """Suites, or what is slowed: with baselines that are committed, and a change that is not."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._kind = kind
        self.recorded_loops = -1
        self.runs = 0
        if kind == "suites":
            self.repository = Repository(folder, [ROOT / n for n in ("suites", "pyproject.toml", "conftest.py")])
            self._changing = folder / "suites" / "conftest.py"
        else:
            self.repository = Repository(folder, sorted(SLOWED.glob("*.py")))
            (folder / "pytest.ini").write_text("[pytest]\n")
            self._changing = folder / "slower.py"
        self._code = self._changing.read_text()
        self.repository.commit("the code")

    def record(self, cases: Sequence[str], loops: int) -> None:
        """Record baselines beside so many busy loops, and commit them."""
        tell(f"recording the baselines of {', '.join(cases)} beside {loops} loops")
        self._changing.write_text(self._code)
        with beside(loops):
            self.repository.pytest("--distbench-update=all", *self._tests(cases))
        self.repository.commit("baselines")
        self.recorded_loops, self.runs = loops, 0

    def run(self, cell: Cell, prefix: Sequence[str] = (), *options: str) -> tuple[list[CaseResult], float]:
        """One run of a case, slowed by a share, and its seconds."""
        self.runs += 1
        what = "WAITS" if cell.case == "waiting" else "SHARE"
        changed = self._code.replace(f"{what} = 0.0", f"{what} = {PLANTED.get(cell.case, 1.0) * cell.slowdown}")
        self._changing.write_text(f"{changed}\n# run {self.runs}\n")
        start = time.monotonic()
        results: list[CaseResult] = self.repository.pytest(*options, *self._tests([cell.case]), prefix=prefix)
        return results, time.monotonic() - start

    def _tests(self, cases: Sequence[str]) -> list[str]:
        tests = dict.fromkeys("small" if case == "waiting" else case for case in cases)
        return ["suites"] if self._kind == "suites" else [f"test_slowed.py::test_{name}" for name in tests]


@contextmanager
def slower_machine(how: str) -> Iterator[Sequence[str]]:
    """Make the machine slower as a whole; gives what a command has to begin with."""
    if how == QUOTA:
        with _quota() as prefix:
            yield prefix
    elif how == TAKEN:
        with busy_loop() as loop:
            os.sched_setaffinity(loop.pid, [min(os.sched_getaffinity(0))])
            os.setpriority(os.PRIO_PROCESS, loop.pid, -20)
            weight = Path(f"/proc/{loop.pid}/autogroup")  # of its session, where the system shares between sessions
            if weight.exists():
                weight.write_text("-20")
            yield ()
    else:
        yield ()


@contextmanager
def _quota() -> Iterator[Sequence[str]]:
    """A cgroup that may use 70 % of the cores.

    Raises:
        SystemExit: this system lets nobody make one.
    """
    group = CPU_CONTROLLER / f"distbench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(f"{group}: {error}; a CPU quota needs root, and the cpu controller of cgroups v1") from None
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(0.7 * PERIOD_US * len(os.sched_getaffinity(0)))))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """When the last process in it has ended."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return


def measure(
    part: str, wanted: Sequence[Cell], known: Sequence[Line], *, runs: int, loops: int, records: Path | None
) -> Iterator[Line]:
    """The runs that are missing, cell after cell and again; what pytest recorded is kept in ``records``."""
    missing = {cell: max(0, runs - sum(line.cell == cell for line in known)) for cell in wanted}
    dice = random.Random()
    with tempfile.TemporaryDirectory(prefix="confirmation-") as name:
        projects: dict[tuple[str, bool], Project] = {}
        while any(missing.values()):
            for cell in [cell for cell, count in missing.items() if count]:
                comes_and_goes = cell.beside == BUSY
                project = projects.get((cell.project, comes_and_goes))
                if project is None:
                    project = Project(Path(name) / str(len(projects)), cell.project)
                    projects[cell.project, comes_and_goes] = project
                cells = [c for c in missing if (c.project, c.beside == BUSY) == (cell.project, comes_and_goes)]
                if project.runs % (RUNS_PER_BASELINE[cell.project] * len(cells)) == 0:
                    drawn = dice.choice((0, loops, 2 * loops)) if comes_and_goes else 0
                    project.record(list(dict.fromkeys(c.case for c in cells)), drawn)
                now = dice.choice((0, loops, 2 * loops)) if comes_and_goes else 0
                with beside(now), slower_machine(cell.beside) as prefix:
                    results, seconds = project.run(cell, prefix, *OPTIONS.get(part, ()))
                missing[cell] -= 1
                if records is not None:
                    records.mkdir(parents=True, exist_ok=True)
                    kept = f"{part}-{time.time():.0f}-{cell.case}-{cell.slowdown}.json"
                    project.repository.keep_record(records / kept)
                yield line_of(part, cell, project.recorded_loops, now, results, seconds)


def line_of(
    part: str, cell: Cell, recorded_loops: int, loops: int, results: Sequence[CaseResult], seconds: float
) -> Line:
    """What is kept of a run."""
    judged = [[v for v in result.verdicts if v.is_judged] for result in results]
    turns = [result.confirmation for result in results if result.confirmation is not None]
    worst = max((result.suspicion for result in results), default=0.0)
    return Line(
        part=part,
        case=cell.case,
        beside=cell.beside,
        slowdown=cell.slowdown,
        recorded_loops=recorded_loops,
        loops=loops,
        seconds=seconds,
        red=sum(any(v.is_failure for v in found) for found in judged),
        machine=sum(any(v.kind == "environment" for v in found) for found in judged),
        open=sum(any(v.is_undecided for v in found) for found in judged),
        unseen=sum(any(v.code == "low-power" for v in found) for found in judged),
        confirmed=len(turns),
        turns_s=sum(c.took_s for c in turns),
        launches=sum(len(result.launches) for result in results),
        pairs=sum(len(c.launches) for c in turns),
        suspicion=worst,
        stored=_changed([m for result in results for m in _stored(result)]),
        in_turns=_changed([m for result in results for m in _in_turns(result)]),
        notes=[note for result in results for note in _notes(result, is_healthy=not cell.slowdown)],
    )


def _stored(result: CaseResult) -> list[float]:
    """The changes of the clocks that the stored comparison saw; a confirmed verdict has another."""
    return [] if result.confirmation else [v.ratio for v in result.verdicts if _is_time(v.unit, v.ratio) and v.ratio]


def _in_turns(result: CaseResult) -> list[float]:
    """The changes of the clocks in turns: this tree's value over the mean of the revision's, mean of the pairs."""
    if result.confirmation is None:
        return []
    found: dict[str, list[float]] = {}
    sides = (result.confirmation.launches, result.confirmation.baselines, result.confirmation.controls)
    for launches in zip(*sides, strict=True):
        here, *there = [
            {m.key: m.value for m in launch.measurements if m.is_judged and m.unit == "s" and m.value}
            for launch in launches
        ]
        for key, value in here.items():
            if all(key in known for known in there):
                known = statistics.fmean(math.log(side[key]) for side in there)
                found.setdefault(key, []).append(math.log(value) - known)
    return [math.exp(statistics.fmean(differences)) for differences in found.values()]


def _is_time(unit: str, ratio: float | None) -> bool:
    return unit == "s" and ratio is not None and ratio > 0


def _changed(ratios: Sequence[float]) -> float | None:
    """The median over clocks, as a fraction."""
    return statistics.median(ratios) - 1 if ratios else None


def _notes(result: CaseResult, *, is_healthy: bool) -> list[str]:
    """What is to be understood later: failures that are no regressions, doubts, and reasons."""
    told = [f"{v.metric}: {v.kind} {(v.ratio or math.nan) - 1:+.1%}; {v.reason}" for v in result.verdicts if v.reason]
    found = result.suspicion > 0 or result.unconfirmed or result.confirmation or result.outcome == "failed"
    if not (found or not is_healthy):
        return []
    took = f", {result.confirmation.took_s:.1f} s of A/B" if result.confirmation else ""
    head = f"{result.nodeid}: {result.outcome}, suspicion {result.suspicion:.2f}{took}"
    last = result.launches[-1]
    broken = [last.reason] if last.outcome != "passed" else []
    return [" | ".join([head, *filter(None, [result.unconfirmed, *broken]), *told])]


HEADER = (
    "case", "slowdown", "load", "runs", "red", "environment", "inconclusive", "low power", "confirmed", "launches",
    "pairs", "seconds", "longest", "A/B s", "stored", "A/B",
)  # fmt: skip


def table(lines: Sequence[Line]) -> list[str]:
    """One row per cell."""
    rows = []
    for cell in dict.fromkeys(line.cell for line in lines):
        found = [line for line in lines if line.cell == cell]

        def mean(name: str, found: Sequence[Line] = found) -> str:
            return f"{statistics.fmean(getattr(line, name) for line in found):.1f}"

        def count(name: str, found: Sequence[Line] = found) -> str:
            return str(sum(getattr(line, name) > 0 for line in found))

        def change(name: str, found: Sequence[Line] = found) -> str:
            known = [getattr(line, name) for line in found if getattr(line, name) is not None]
            return f"{statistics.median(known):+.1%}" if known else "-"

        seconds = [line.seconds for line in found]
        rows.append(
            (
                cell.case,
                f"{cell.slowdown:.0%}",
                cell.beside,
                str(len(found)),
                *map(count, ("red", "machine", "open", "unseen")),
                *map(mean, ("confirmed", "launches", "pairs")),
                f"{statistics.median(seconds):.1f}",
                f"{max(seconds):.1f}",
                mean("turns_s"),
                change("stored"),
                change("in_turns"),
            )
        )
    return layout(HEADER, rows)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--runs", type=int, default=20, help="of each cell, those in the file included")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: confirmation-PART.jsonl")
    parser.add_argument("--show", action="store_true", help="print what the file holds, and run nothing")
    parser.add_argument("--loops", type=int, default=2, help="busy loops that come and go")
    parser.add_argument("--cases", metavar="NAMES", help="only these, with commas between them")
    parser.add_argument("--slowdowns", metavar="SHARES", help="only these, as 0.1,0.2")
    parser.add_argument("--records", type=Path, metavar="DIR", help="keep there what each run of pytest recorded")
    options = parser.parse_args()
    file = options.out or Path(f"confirmation-{options.part}.jsonl")
    lines = [Line(**json.loads(text)) for text in file.read_text().splitlines()] if file.exists() else []
    lines = [line for line in lines if line.part == options.part]
    cases = options.cases.split(",") if options.cases else None
    shares = [float(text) for text in options.slowdowns.split(",")] if options.slowdowns else None
    wanted = [
        cell
        for cell in PARTS[options.part]
        if (cases is None or cell.case in cases) and (shares is None or cell.slowdown in shares)
    ]
    end_by_sigterm_too()
    if not options.show:
        try:
            for line in measure(
                options.part, wanted, lines, runs=options.runs, loops=options.loops, records=options.records
            ):
                with file.open("a") as out:
                    out.write(json.dumps(asdict(line)) + "\n")
                lines.append(line)
                tell(f"{line.case} {line.slowdown:.0%} beside {line.beside} ({line.recorded_loops} -> {line.loops})")
                tell("\n".join(f"    {note}" for note in [*line.notes, f"{line.seconds:.1f} s"]))
        except KeyboardInterrupt:
            tell("interrupted; the same command goes on from here")
    order = {cell: i for i, cell in enumerate(PARTS[options.part])}
    print("\n".join(table(sorted(lines, key=lambda line: order.get(line.cell, len(order))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
