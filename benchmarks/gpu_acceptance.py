"""Does the plugin do on these GPUs what it promises? The acceptance script: about an hour.

    make gpu
    python benchmarks/gpu_acceptance.py [--only clock,hang] [--json FILE] [--stand-in [HOST]]
    python benchmarks/gpu_acceptance.py --keep FOLDER [--resume] [--limit SECONDS]    # where a job is shorter than this

Prints a line for each promise, with what was expected and what was seen; a line that needs more than this machine has
is *not run*, and says what it needs. Ends with 0 where every line that ran is as expected, with 1 where one is not,
with 2 where none could be run. ``--json`` keeps all of it, with the machine, its driver and its software; it is written
after each line. ``--keep`` keeps what the lines wrote too: baselines, run records, what pytest printed. ``--resume``
goes on there, with the lines that are not in it, or failed. No run of pytest takes longer than ``--limit``; what it had
printed by then is kept.

``gpu_seen/h200.json`` is what one H200 said (driver 580, torch 2.11, NCCL 2.28.9): a rank is forked with everything
preloaded, and its first kernel takes 0.3 s; of one that is killed, 40 GiB are free after 0.1 s; launches of a matrix
product and of a copy of 1 GiB differ by at most 0.4 %, those of a small training that its host binds by 20 to 40 %.

``--stand-in`` runs the lines that can be simulated, on the made-up GPUs of tests: it shows that the script works,
and says nothing of GPUs. ``--stand-in 8xMI300X`` has those of AMD.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pytest_distbench.machine.gpus import connect, read_gpus
from pytest_distbench.machine.hardware import installed_version
from pytest_distbench.records.run import CaseResult
from pytest_distbench.releases import own_version
from pytest_distbench.store.files import read_run_record

ROOT = Path(__file__).resolve().parent.parent
LINES = ROOT / "benchmarks" / "gpu_lines" / "test_lines.py"
MARK = "DISTBENCH_ACCEPTANCE"
"""In the environment of everything a line starts: what is left of it carries the mark."""

STAND_IN = [
    *("-p", "support.cuda_launcher"),
    *("-p", "support.nvml"),
    "--distbench-launcher=stand-in-cuda",
    *("-o", "pythonpath=suites/training suites/structure"),
]
"""For pytest, where the GPUs are made up: the driver, and CUDA in the ranks, which are not those of the repository."""

MADE_UP = {"DISTBENCH_NVML": os.environ.get("DISTBENCH_NVML", "8xH100"), "PYTHONPATH": str(ROOT / "tests")}
"""What they are, and where they lie."""

SMALL = ["--distbench-max-message=64KiB", "--distbench-launches=3:3"]
"""For the suites on made-up GPUs, whose times mean nothing: they are to come to their end."""

SOME = ["-k", "float32 and not mlbench or test_operation or links or training and not gnmt"]
"""Of the suites, where a CPU computes for the GPU: one of each kind, and not an hour of them."""

FEW = ["-k", "float32 and not mlbench or logistic"]
"""Of the suites: a sweep and a training."""

DISTBENCH = [str(Path(sys.executable).with_name("distbench"))]

LIMIT_S = 3600.0
"""For one run of pytest, where ``--limit`` says nothing: with large messages, and contexts to be made, a launch takes
seconds."""
TIMED_OUT = 124
"""In place of the exit code of a run that was ended, as ``timeout`` has it."""
GIVEN_BACK_S = 5.0
"""How long the memory of a killed rank may take to be free again."""


class NotRun(Exception):
    """A line needs what this machine has not."""


@dataclass(frozen=True)
class Seen:
    """What a line found, and whether that is what was expected."""

    text: str
    is_expected: bool


@dataclass
class Bench:
    """What the lines share.

    Attributes:
        folder: for their files.
        stand_in: the made-up host; empty: the GPUs are real.
        count: GPUs that are visible.
        limit_s: how long one run of pytest may take.
        baselines: of the suites, made by the line that records them.
    """

    folder: Path
    stand_in: str
    count: int
    limit_s: float = LIMIT_S
    baselines: Path = field(init=False)

    def __post_init__(self) -> None:
        self.baselines = self.folder / "baselines"
        if self.stand_in:  # beside the repository: with its last commit the code of the repository is compared
            shutil.copytree(ROOT / "tests" / "support", self.folder / "made-up" / "support", dirs_exist_ok=True)

    def pytest(self, *arguments: str, name: str, **variables: str) -> Ran:
        """Run pytest with ``--gpu`` and a run record of that name."""
        record = self.folder / f"{name}.json"
        record.unlink(missing_ok=True)
        return self.run([*self.command(*arguments), f"--distbench-json={record}"], record, **variables)

    def run(self, command: Sequence[str], record: Path, **variables: str) -> Ran:
        """Run a command in time; what it prints lies beside its record."""
        printed = record.with_suffix(".txt")
        with printed.open("w") as out:
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=self.environment(**variables),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=self.limit_s,
                ).returncode
            except subprocess.TimeoutExpired:
                code = TIMED_OUT
        return Ran(code, printed.read_text(errors="replace"), record)

    def command(self, *arguments: str) -> list[str]:
        """The command line of a run with ``--gpu``."""
        simulated = STAND_IN if self.stand_in else []
        return [sys.executable, "-m", "pytest", "--gpu", "-p", "no:xdist", *simulated, *arguments]

    def environment(self, **variables: str) -> dict[str, str]:
        """Of what a line starts."""
        simulated = {"DISTBENCH_NVML": self.stand_in, "PYTHONPATH": str(self.folder / "made-up")}
        return {**os.environ, MARK: str(os.getpid()), **(simulated if self.stand_in else {}), **variables}

    def needs_hardware(self) -> None:
        """Raises NotRun where the GPUs are made up."""
        if self.stand_in:
            raise NotRun("needs a GPU: a stand-in shows nothing of it")

    def needs(self, count: int) -> None:
        """Raises NotRun where there are fewer GPUs."""
        if self.count < count:
            raise NotRun(f"needs {count} GPUs, there {'is' if self.count == 1 else 'are'} {self.count}")


@dataclass(frozen=True)
class Ran:
    """A pytest run that is over."""

    code: int
    output: str
    record: Path

    @property
    def cases(self) -> list[CaseResult]:
        """What it measured; nothing if it wrote no record."""
        return list(read_run_record(self.record).results) if self.record.exists() else []

    @property
    def totals(self) -> str:
        """Pytest's last line; of a run that was ended the last ones that it printed."""
        if self.code == TIMED_OUT:
            return f"ended in the middle, by its limit: ...{self.output.strip()[-200:]}"
        found = re.findall(r"=+ (.* in [\d.]+s.*?) =+$|^(\d+ \w+.* in [\d.]+s.*)$", self.output, re.MULTILINE)
        return next((a or b for a, b in reversed(found)), self.output.strip()[-200:])

    def line(self, pattern: str) -> str:
        """The first line of the output that matches; empty if none does."""
        found = re.search(f"^.*(?:{pattern}).*$", self.output, re.MULTILINE)
        return found[0].strip() if found else ""


def driver(bench: Bench) -> Seen:
    """All GPUs are listed, and the doctor ends with 0."""
    bench.needs_hardware()
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
    doctor = subprocess.run([*DISTBENCH, "doctor"], capture_output=True, text=True, check=False)
    return Seen(
        f"{sum('GPU' in line for line in listed)} by nvidia-smi, {bench.count} by us, doctor {doctor.returncode}",
        doctor.returncode == 0 and bench.count > 0,
    )


def fork(bench: Bench) -> Seen:
    """A rank that was forked with everything preloaded computes on its device."""
    ran = bench.pytest(f"{LINES}::test_line", "-k", "matter", "--world-size", "1", name="matter")
    return Seen(ran.totals, ran.code == 0)


def conformance(bench: Bench) -> Seen:
    """Clocks, sweep, training and faults with NCCL, small suites from lease to report: test_gpu.py, none skipped."""
    chosen = "stand-in" if bench.stand_in else "not stand-in"
    command = [sys.executable, "-m", "pytest", "tests/end_to_end/test_gpu.py", "-v", "-n0", "-k", chosen]
    ran = bench.run(command, bench.folder / "conformance.json")
    return Seen(ran.totals, ran.code == 0 and "skipped" not in ran.totals)


def record(bench: Bench) -> Seen:
    """The suites record baselines on up to two GPUs."""
    ran = bench.pytest(*_suites(bench), "--distbench-update", "--distbench-launches=3", name="record")
    return Seen(ran.totals, ran.code == 0)


def repeat(bench: Bench) -> Seen:
    """They are green twice after it, and trainings repeat in every digit."""
    if not bench.baselines.exists():
        raise NotRun("needs the baselines of the line record, of the same call or of the folder of --keep")
    again = [bench.pytest(*_suites(bench), name=f"repeat{i}") for i in range(2)]
    curves = [v for ran in again for case in ran.cases for v in case.verdicts if v.better == "curve"]
    equal = sum(v.kind == "unchanged" and "every digit" in v.reason for v in curves)
    text = f"{'; '.join(ran.totals for ran in again)}; {equal} of {len(curves)} curves equal"
    return Seen(text, all(r.code == 0 for r in again) and equal == len(curves) > 0)


def _suites(bench: Bench) -> list[str]:
    chosen = ["suites", f"--world-size={min(2, bench.count)}", f"--distbench-baselines={bench.baselines}"]
    return [*chosen, *([*SMALL, *SOME, "--distbench-tolerance=5"] if bench.stand_in else [])]


def against(bench: Bench) -> Seen:
    """A sweep and a training in turns with the last commit: nothing exact moved; there are tables of it."""
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        raise NotRun("needs a git checkout: the other side is the last commit")
    ran = bench.pytest(
        "suites",
        *FEW,
        f"--world-size={min(2, bench.count)}",
        "--distbench-against=HEAD",
        *(["-o", "distbench_against_tolerance=5", *SMALL] if bench.stand_in else []),
        name="against",
    )
    kinds = [v.kind for case in ran.cases for v in case.verdicts if v.is_judged]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    tables = ("verdicts", "collectives", "launches")
    codes = [
        subprocess.run(
            [*DISTBENCH, "report", str(ran.record), "--table", table], capture_output=True, check=False
        ).returncode
        for table in tables
    ]
    return Seen(
        f"{ran.totals}; {counted}; exit codes of {', '.join(tables)} {codes}",
        ran.code == 0 and "unchanged" in kinds and not any(codes),
    )


def sharing(bench: Bench) -> Seen:
    """Two ranks on one GPU sweep and train: nothing is judged, and the fingerprints have the all_reduce."""
    ran = bench.pytest(
        "suites",
        *FEW,
        "--world-size=2",
        "--distbench-share=gpu",
        "--distbench-max-message=64KiB",
        "--distbench-launches=1",
        f"--distbench-baselines={bench.baselines}",
        name="sharing",
    )
    judged = {v.kind for case in ran.cases for v in case.verdicts if v.is_judged}
    prints = [
        row.op
        for case in ran.cases
        for launch in case.launches
        for f in launch.fingerprints.values()
        for rows in f.collectives.values()
        for row in rows
    ]
    has_it = any("all_reduce" in op.lower().replace("allreduce", "all_reduce") for op in prints)
    return Seen(
        f"{ran.totals}; verdicts {', '.join(sorted(judged))}; all_reduce {'seen' if has_it else 'not seen'}",
        ran.code == 0 and judged <= {"inconclusive"} and has_it,
    )


def clock(bench: Bench) -> Seen:
    """Kernels of 10 us to 10 ms within 4 us or 2 %, behind 100 us of host too; none reads below 10 us."""
    ran = bench.pytest(f"{LINES}::test_line", "-k", "clock", "--world-size", "1", name="clock")
    values = {m.key: m.value or 0.0 for case in ran.cases[:1] for m in case.launches[0].measurements}
    if not values:
        return Seen(ran.totals, is_expected=False)
    off = [
        # what none reads is not subtracted: of an H200 a kernel reads 3 us too much, and two events without one 8 us
        (abs(values[f"{name}[us={us}]"] - us * 1e-6), us * 1e-6)
        for us in (10, 100, 1000, 10_000)
        for name in ("kernel", "behind_host")
    ]
    worst = max(error / max(4e-6, 0.02 * wanted) for error, wanted in off)
    text = ", ".join(
        f"{us} us reads {values[f'kernel[us={us}]'] * 1e6:.1f} and {values[f'behind_host[us={us}]'] * 1e6:.1f}"
        for us in (10, 1000)
    )
    return Seen(f"{text}; nothing {values['nothing'] * 1e6:.1f} us", worst <= 1 and values["nothing"] < 10e-6)


def hiccup(bench: Bench) -> Seen:
    """A kernel of 50 us behind 60 us of host reads within 10 us of it, whether the warm-up was interrupted or not."""
    ran = bench.pytest(f"{LINES}::test_line", "-k", "hiccup", "--world-size", "1", name="hiccup")
    values = [m.value or 0.0 for case in ran.cases[:1] for m in case.launches[0].measurements if m.name == "kernel"]
    text = " and ".join(f"{value * 1e6:.1f} us" for value in values) or ran.totals
    return Seen(text, len(values) == 2 and all(abs(value - 50e-6) <= 10e-6 for value in values))


def planted_item(bench: Bench) -> Seen:
    """A training that waits for the device at every step, and so for its host too, regresses by more than 25 %."""
    common = [f"{LINES}::test_line", "-k", "train and not trains", "--world-size", "1"]
    common += [f"--distbench-baselines={bench.folder / 'planted'}"]
    bench.pytest(*common, "--distbench-update", "--distbench-launches=5", name="plain")
    ran = bench.pytest(*common, name="planted", PLANTED="item")
    found = [v for case in ran.cases for v in case.verdicts if v.name == "step_time"]
    text = ", ".join(f"{v.kind} {v.ratio - 1:+.0%}" if v.ratio is not None else v.kind for v in found) or ran.totals
    is_told = [v.kind for v in found] == ["regressed"] and (found[0].ratio or 0.0) > 1.25
    return Seen(text, ran.code == 1 and is_told)


def hang(bench: Bench) -> Seen:
    """Rank 1 does not come to a collective: it is named, and not rank 0, which waits."""
    ran = _share(bench, "hang", "--distbench-timeout=60")
    line = ran.line(r"launch 1 on 2 ranks:")
    return Seen(line or ran.totals, ran.code == 1 and re.search(r"hung.*: rank 1\b", line) is not None)


def killed(bench: Bench) -> Seen:
    """A rank that is killed is told as that, and its memory is free again within 5 s."""
    before = _used_bytes(bench)
    ran = _share(bench, "killed_with_memory", **({"HELD_BYTES": str(2**20)} if bench.stand_in else {}))
    line = ran.line(r"rank 1.*SIGKILL")
    until = time.monotonic() + GIVEN_BACK_S
    while (held := _used_bytes(bench) - before) > 2**28 and time.monotonic() < until:
        time.sleep(0.2)
    return Seen(f"{line or ran.totals}; {held / 2**20:.0f} MiB still held", bool(line) and held <= 2**28)


def late_error(bench: Bench) -> Seen:
    """A kernel that fails, enqueued by the last statement of a body, fails the launch."""
    bench.needs_hardware()
    ran = bench.pytest(f"{LINES}::test_line", "-k", "assertion", "--world-size", "1", name="assertion")
    return Seen(ran.line(r"CUDA error|device-side assert") or ran.totals, ran.code == 1)


def ended_pytest(bench: Bench) -> Seen:
    """After SIGKILL to pytest no process of it is left, on the host and on the GPU."""
    command = bench.command(f"{LINES}::test_line", "-k", "trains_long", "--world-size", "1", "-v")
    process = subprocess.Popen(
        command, cwd=ROOT, env=bench.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(20.0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 15
    while (left := _left()) and time.monotonic() < until:
        time.sleep(0.2)
    return Seen(f"{len(left)} processes left", not left)


def nccl_tests(bench: Bench) -> Seen:
    """Bus bandwidth of the sweep and of nccl-tests agree within 8 % from 64 MiB on.

    Theirs is one process for all GPUs, ours one for each: what is not NVLink costs the two differently.
    """
    bench.needs_hardware()
    bench.needs(2)
    program = shutil.which("all_reduce_perf")
    if program is None:
        raise NotRun("needs nccl-tests: all_reduce_perf on PATH")
    world = str(bench.count)
    done = subprocess.run(
        [program, "-b", "64M", "-e", "1G", "-f", "2", "-g", world], capture_output=True, text=True, check=False
    )
    theirs = {}
    for row in done.stdout.splitlines():
        words = row.split()
        if len(words) > 12 and words[0].isdecimal() and not row.startswith("#"):
            theirs[int(words[0])] = float(words[11])  # in-place busbw, GB/s
    sweep = "suites/collectives/test_all_reduce.py::test_all_reduce"
    ran = bench.pytest(sweep, "-k", "float32", "--world-size", world, name="sweep")
    factor = 2 * (bench.count - 1) / bench.count
    ours = {
        int(m.at["message_bytes"]): factor * int(m.at["message_bytes"]) / (m.value or 1.0) / 1e9
        for case in ran.cases[:1]
        for m in case.launches[0].measurements
        if m.name == "latency"
    }
    ratios = [ours[size] / theirs[size] for size in theirs if size in ours]
    text = ", ".join(f"{ratio:.2f}" for ratio in ratios) or f"{ran.totals}; {done.stdout[-200:]}"
    return Seen(f"ours / theirs: {text}", bool(ratios) and all(abs(ratio - 1) <= 0.08 for ratio in ratios))


def leases(bench: Bench) -> Seen:
    """Two runs at once measure one after the other, each on the GPU it was given."""
    bench.needs(2)
    command = [f"{LINES}::test_line", "-k", "matter", "--world-size", "1"]
    visible = [gpu.uuid for gpu in read_gpus(os.environ).visible][:2] if not bench.stand_in else ["0", "1"]
    runs = [
        subprocess.Popen(
            bench.command(*command),
            cwd=ROOT,
            env=bench.environment(CUDA_VISIBLE_DEVICES=uuid),
            stdout=subprocess.PIPE,
            text=True,
        )
        for uuid in visible
    ]
    codes = [(run.communicate(timeout=bench.limit_s), run.returncode)[1] for run in runs]
    return Seen(f"exit codes {codes}", codes == [0, 0])


LINES_IN_ORDER: dict[str, Callable[[Bench], Seen]] = {
    line.__name__: line
    for line in (
        driver,
        fork,
        conformance,
        record,
        repeat,
        against,
        sharing,
        clock,
        hiccup,
        planted_item,
        hang,
        killed,
        late_error,
        ended_pytest,
        nccl_tests,
        leases,
    )
}
"""By name, in the order in which they run."""


def _share(bench: Bench, name: str, *options: str, **variables: str) -> Ran:
    return bench.pytest(
        f"{LINES}::test_line", "-k", name, "--world-size=2", "--distbench-share=gpu", *options, name=name, **variables
    )


def _used_bytes(bench: Bench) -> int:
    if bench.stand_in:
        return 0
    with connect() as driver:
        found = (driver.demand("GetHandleByUUID", gpu.uuid) for gpu in read_gpus(os.environ).visible)
        return sum(int(driver.demand("GetMemoryInfo", handle).used) for handle in found)


def _left() -> list[int]:
    """Processes that carry our mark, but for this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(os.getpid()) and process.pid != os.getpid():
                found.append(process.pid)
    return found


def run_lines(bench: Bench, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run and print; yields what becomes of each."""
    for number, name in enumerate(names, 1):
        line = LINES_IN_ORDER[name]
        expected = str(line.__doc__).partition("\n")[0]
        start = time.monotonic()
        print(f"{number:2} {name}\n   expected  {expected}", flush=True)
        try:
            seen = line(bench)
            outcome = "ok" if seen.is_expected else "FAILED"
        except NotRun as why:
            seen, outcome = Seen(str(why), is_expected=True), "not run"
        except Exception as error:  # noqa: BLE001 # one line must not end the others
            seen, outcome = Seen(f"{type(error).__name__}: {error}", is_expected=False), "FAILED"
        seconds = time.monotonic() - start
        print(f"   seen      {seen.text}\n   {outcome}  ({seconds:.0f} s)", flush=True)
        yield {"line": name, "expected": expected, **asdict(seen), "outcome": outcome, "seconds": round(seconds, 1)}


def main() -> int:
    """Run the lines; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(LINES_IN_ORDER), help="names of lines, with commas")
    parser.add_argument("--json", type=Path, help="keep what was seen; with --keep there, as seen.json")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what the lines wrote")
    parser.add_argument("--resume", action="store_true", help="go on there, with lines not there or that failed")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="of one run of pytest")
    host = MADE_UP["DISTBENCH_NVML"]
    parser.add_argument(
        "--stand-in", nargs="?", const=host, default="", metavar="HOST", help=f"made up: {host} or 8xMI300X"
    )
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in LINES_IN_ORDER]:
        parser.error(f"--only: no line {unknown[0]!r}; there are {', '.join(LINES_IN_ORDER)}")
    if options.resume and options.keep is None:
        parser.error("--resume: needs the folder of an earlier --keep")
    found = [] if options.stand_in else list(read_gpus(os.environ).visible)
    if not found and not options.stand_in:
        print("no GPU is visible here: see distbench doctor; --stand-in shows the script on made-up ones")
        return 2
    machine = {
        "gpus": [gpu.name for gpu in found] or ["stand-in"] * 8,
        "host": platform.platform(),
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "distbench": own_version(),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    kept = options.json or (options.keep and options.keep / "seen.json")
    lines: dict[str, dict[str, Any]] = {}
    if options.resume and kept.exists():
        before = json.loads(kept.read_text())
        if before["machine"] != machine:
            parser.error(f"--resume: {kept} is of another machine, or of other software: {before['machine']}")
        lines = {line["line"]: line for line in before["lines"] if line["outcome"] == "ok"}
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distbench-")))
        bench = Bench(folder.resolve(), options.stand_in, len(machine["gpus"]), options.limit)
        for line in run_lines(bench, [name for name in names if name not in lines]):
            lines[line["line"]] = line
            if kept is not None:
                _write(kept, {"machine": machine, "lines": list(lines.values())})
    outcomes = [lines[name]["outcome"] for name in names]
    print(", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("ok", "FAILED", "not run")))
    return 1 if "FAILED" in outcomes else 0 if "ok" in outcomes else 2


def _write(path: Path, seen: Mapping[str, Any]) -> None:
    """In one piece, whenever this process ends."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(seen, indent=1) + "\n")
    draft.rename(path)


if __name__ == "__main__":
    sys.exit(main())
