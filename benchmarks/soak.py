"""Soak: runs that are killed at random moments; then hundreds of launches in one pytest run, half of them with a fault.

    python benchmarks/soak.py                    # 300 launches and 20 kills, about six minutes on two cores
    python benchmarks/soak.py --launches 60 --kills 4 --launcher torchrun
    python tests/support/slurm_cluster.py 4 -- salloc -Q --no-kill --nodes=4 python benchmarks/soak.py --launcher slurm

Under Slurm, which is that cluster in namespaces, nodes die, too, as long as three are left, and networks part for 30 s.
Prints which faults were injected, detected and attributed to the right rank, how long such a launch took (a hang: 4 s
until the time-out), whether memory grew, and what was left behind: processes, sockets, semaphores, shared memory,
folders, damaged baselines. Exit code 1 unless all is well. The same seed draws the same faults.

On a Slurm of four nodes in namespaces (``--no-kill``, ``--launches=100 --kills=3 --seed=2``), some lines::

    fault                                  injected  detected  mis-attributed  median s
    healthy                                      40        40               0      0.47
    loses_its_network                             1         1               0     26.74
    loses_its_node                                1         1               0      0.80
    all                                         100       100               0
    pytest: 53.6 MiB in the first quarter, 56.3 MiB in the last, 36 KiB a launch
    launches wrong: 0, baselines damaged: 0
    left behind: processes 0, sockets 0, semaphores 0, shared memory 0, temporary folders 0
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import faults
import msgspec
import psutil

from pytest_distbench.errors import StoredFileError
from pytest_distbench.hosts.slurm import read_allocation
from pytest_distbench.launch.site import processes
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.baselines import read_file
from pytest_distbench.store.files import read_run_record

MARK = "DISTBENCH_SOAK"
SETTLE_S = 10.0
"""How long processes may take to be gone after their run was killed."""
HANG_S = 4.0
"""The time-out of launches that are to reach it."""
TIMEOUT_S = 60.0
"""That of all others: a busy machine is no fault."""
HEALTHY_SHARE = 0.5
LAST_SHARE = 0.2
"""Faults that kill the launcher come in this last part of the run, so that one parent's memory is seen for long."""

TEST = """
import json, sys
sys.path.insert(0, {folder!r})
import faults, pytest

BY_NAME = {{fault.name: fault for fault in faults.known_under({launcher!r})}}
PLAN = json.load(open("plan.json"))

@pytest.mark.parametrize("launch", range(len(PLAN)))
def test_soak(distbench, monkeypatch, launch):
    fault = BY_NAME[PLAN[launch]]
    if fault.phase:
        monkeypatch.setenv(faults.PHASE_VARIABLE, fault.phase)
    distbench.run(fault.body, timeout={hang} if fault.is_hang or fault.waits else {timeout})
"""


SHARED = Path("/dev/shm")
LEFT = f"soak{os.getpid()}"


@dataclass
class Leftovers:
    """What is left after runs in a folder.

    Attributes:
        folder: where the runs were, and their temporary files.
        runs: names of all run directories that were seen there: semaphores are named after them.
    """

    folder: Path
    runs: set[str] = field(default_factory=set)
    processes: int = 0
    sockets: int = 0

    def look_for_runs(self) -> None:
        self.runs.update(path.name for path in self.folder.glob("distbench-*/"))

    def count(self) -> dict[str, int]:
        """How many of each kind there are now; those of processes and sockets since the beginning."""
        found = {
            "semaphores": [path for run in self.runs for path in SHARED.glob(f"sem.{run}-*")],
            "shared memory": list(SHARED.glob(f"{LEFT}*")),
            "temporary folders": list(self.folder.rglob(f"{faults.LEFT}*")),
        }
        for path in (path for paths in found.values() for path in paths):
            print(f"  left behind: {path}")
        counts = {kind: len(paths) for kind, paths in found.items()}
        return {"processes": self.processes, "sockets": self.sockets, **counts}


class Memory(threading.Thread):
    """Resident bytes of pytest and of its ranks' parents, twice a second."""

    def __init__(self, pid: int, leftovers: Leftovers) -> None:
        super().__init__(daemon=True)
        self._pytest = psutil.Process(pid)
        self._leftovers = leftovers
        self.samples: list[tuple[float, int, int, int]] = []
        """(seconds, bytes of pytest, pid of the parent, its bytes)."""

    def run(self) -> None:
        start = time.monotonic()
        with contextlib.suppress(psutil.Error):
            while self._pytest.is_running() and self._pytest.status() != psutil.STATUS_ZOMBIE:
                parents = helpers(self._pytest)
                parent = (parents[0].pid, parents[0].memory_info().rss) if parents else (0, 0)
                self.samples.append((time.monotonic() - start, self._pytest.memory_info().rss, *parent))
                self._leftovers.look_for_runs()
                time.sleep(0.5)

    def growth(self, launches: int) -> list[str]:
        """Median of the first and the last quarter, of pytest and of the parent that lived longest.

        pytest keeps the report of every test until its end, ours among them: some KiB a launch are no leak.
        """
        counts = Counter(pid for _, _, pid, _ in self.samples if pid)
        series = {"pytest": [rss for _, rss, _, _ in self.samples]}
        if counts:
            longest = counts.most_common(1)[0][0]
            series["parent"] = [rss for _, _, pid, rss in self.samples if pid == longest]
        lines = []
        for name, values in series.items():
            quarter = max(1, len(values) // 4)
            first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
            each = (last - first) / 1024 / (0.75 * launches)
            text = f"{first / 2**20:.1f} MiB in the first quarter, {last / 2**20:.1f} MiB in the last"
            lines.append(f"{name}: {text}, {each:.0f} KiB a launch")
        return lines


def draw(count: int, seed: int, launcher: str) -> list[str]:
    """Names of faults, ``healthy`` among them, every fault at least once if there is room."""
    dice = random.Random(seed)
    hard_reasons = (faults.LAUNCHER_DIED, faults.NODE_LOST)
    known = [fault for fault in faults.known_under(launcher) if fault is not faults.HEALTHY]
    usual = [fault.name for fault in known if fault.reason not in hard_reasons]
    hard = [fault.name for fault in known if fault.reason in hard_reasons]
    last = max(len(hard), int(count * LAST_SHARE)) if count > 2 * len(hard) else 0
    each_once = dice.sample(usual, len(usual))
    first = [*each_once, *(dice.choice(usual) for _ in range(count))][: int((count - last) * (1 - HEALTHY_SHARE))]
    first += ["healthy"] * (count - last - len(first))
    dice.shuffle(first)
    ending = [*hard, *(dice.choice([*usual, *hard, "healthy", "healthy"]) for _ in range(last))][:last]
    dice.shuffle(ending)
    return spare_nodes(first + ending)


def spare_nodes(plan: list[str]) -> list[str]:
    """The same, where no more nodes die than leaves three of the allocation: two to use, and one that may be parted."""
    dying = faults.loses_its_node.__name__
    if dying not in plan:
        return plan
    spare = iter(range(len(read_allocation(os.environ).nodes) - 3))
    return [faults.HEALTHY.name if name == dying and next(spare, None) is None else name for name in plan]


def make_test(launcher: str) -> str:
    """The test file: one launch for each name in ``plan.json``."""
    folder = str(Path(faults.__file__).parent)
    return TEST.format(folder=folder, launcher=launcher, hang=HANG_S, timeout=TIMEOUT_S)


def soak(folder: Path, plan: list[str], launcher: str, leftovers: Leftovers) -> tuple[list[list[str]], list[str], int]:
    """One pytest run; returns the table's rows, lines about memory, and how many launches went wrong."""
    (folder / "test_soak.py").write_text(make_test(launcher))
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    process = start(folder, launcher, "--distbench-json=run.json")
    memory = Memory(process.pid, leftovers)
    memory.start()
    process.wait()
    memory.join(5)
    found = {result.case.id: result for result in read_run_record(folder / "run.json").results}
    by_name = {fault.name: fault for fault in faults.known_under(launcher)}
    rows: dict[str, list[int]] = {}
    walls: dict[str, list[float]] = {}
    for i, name in enumerate(plan):
        result = found.get(f"{i}-ws2")
        detected, right = verdict_on(by_name[name], result)
        row = rows.setdefault(name, [0, 0, 0])
        walls.setdefault(name, []).append(result.launches[-1].wall_s if result else float("nan"))
        row[0] += 1
        row[1] += detected
        row[2] += detected and not right
        if not (detected and right):
            reason = result.launches[-1].reason if result else "no result"
            print(f"  launch {i}: {name}: {reason.splitlines()[0] if reason else 'passed'}")
    wrong = sum(row[0] - row[1] + row[2] for row in rows.values())
    table = [[name, *map(str, row), f"{statistics.median(walls[name]):.2f}"] for name, row in sorted(rows.items())]
    totals = [str(sum(row[i] for row in rows.values())) for i in range(3)]
    return [*table, ["all", *totals, ""]], memory.growth(len(plan)), wrong


def verdict_on(fault: faults.Fault, result: CaseResult | None) -> tuple[bool, bool]:
    """Whether the outcome is the expected one, and whether the right rank and reason are named."""
    if result is None:
        return False, False
    launch = result.launches[-1]
    if not fault.reason:
        return launch.outcome == "passed", True
    named = fault.root_cause is None or launch.fates[0].rank == fault.root_cause
    return launch.outcome == "failed", bool(named and re.match(fault.reason, launch.reason))


def kill_at_random(folder: Path, rounds: int, seed: int, launcher: str, leftovers: Leftovers) -> int:
    """Kill updating runs, parents of ranks and keepers of stores, then let one end; returns what baselines it cost."""
    (folder / "test_soak.py").write_text(make_test(launcher))
    (folder / "plan.json").write_bytes(msgspec.json.encode(["healthy"] * 8))
    begin = time.monotonic()
    start(folder, launcher, "--distbench-update=all", "--distbench-launches=2").wait()
    whole_s = time.monotonic() - begin
    files = sorted((folder / "baselines").rglob("*.json"))
    assert files, "the undisturbed run stored no baseline"
    dice = random.Random(seed)
    damaged = 0
    for _ in range(rounds):
        process = start(folder, launcher, "--distbench-update=all", "--distbench-launches=2")
        time.sleep(dice.uniform(0.1, whole_s))
        victim = dice.choice(("pytest", "pytest", "parent", "keeper"))
        kill(process.pid, victim)
        if victim == "pytest":
            process.wait()
        else:
            process.wait(300)
        leftovers.processes += len(wait_until_gone())
        leftovers.look_for_runs()
        leftovers.sockets += len(found := sockets_below(folder))
        for path in found:
            print(f"  left behind after {victim} was killed: {path}")
            path.unlink()
        damaged += sum(not is_whole(path) for path in files)
    start(
        folder, launcher, "--distbench-update=all", "--distbench-launches=2"
    ).wait()  # removes what the last one could not
    return damaged


def sockets_below(folder: Path) -> list[Path]:
    """Unix sockets in run directories; those that a process still removes are given time.

    Not those of relays: a node keeps them where its relay was killed, and its disk is here the one of pytest.
    """

    def look() -> list[Path]:
        return [path for path in folder.rglob("*") if path.is_socket() and "distbench-relay-" not in str(path)]

    deadline = time.monotonic() + 1.0
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def kill(pid: int, victim: str) -> None:
    """SIGKILL pytest, or one of its helpers where there is one by now."""
    if victim == "pytest":
        os.kill(pid, signal.SIGKILL)
        return
    with contextlib.suppress(psutil.Error):
        for parent in parents_on_nodes():
            parent.kill()
        for of_ranks in helpers(psutil.Process(pid)):
            for process in [of_ranks] if victim == "parent" else helpers(of_ranks)[:1]:  # the keeper is forked first
                process.kill()


def helpers(parent: psutil.Process) -> list[psutil.Process]:
    """The children of a process that run the code of the ranks' parent; ranks are forked from it."""
    return [p for p in parent.children() if "starters.warm" in " ".join(p.cmdline())]


def parents_on_nodes() -> list[psutil.Process]:
    """The processes that have torch loaded on the nodes of a cluster in namespaces of ours; none: there is no such."""
    marked = [process for process in processes.find_marked(MARK, str(os.getpid())) if process.name() != "srun"]
    found = {process.pid: process for process in marked if "hosts.slurm" in " ".join(process.cmdline())}
    return [process for process in found.values() if process.ppid() not in found]  # the others were forked from it


def is_whole(path: Path) -> bool:
    """Whether a baseline can be read, with the value every run measures."""
    try:
        entry = read_file(path).entry
    except StoredFileError as error:
        print(f"  {error}")
        return False
    return {m.value for m in entry.metrics["answer"]} == {42}


def start(folder: Path, launcher: str, *options: str) -> subprocess.Popen[bytes]:
    """A pytest run in a folder, with our mark on everything it starts."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--distbench-launcher={launcher}"]
    variables = {**os.environ, MARK: str(os.getpid()), faults.LEFT_VARIABLE: LEFT, "TMPDIR": str(folder)}
    with open(folder / "output.txt", "ab") as output:
        return subprocess.Popen([*command, *options], cwd=folder, env=variables, stdout=output, stderr=output)


def wait_until_gone() -> list[psutil.Process]:
    """What is still alive of our runs after a fair time; it is killed then."""
    deadline = time.monotonic() + SETTLE_S
    while (alive := processes.find_marked(MARK, str(os.getpid()))) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in alive:
        print(f"  left behind: {process}")
    processes.kill(alive)
    return alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launcher", choices=("warm", "torchrun", "slurm"), default="warm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        leftovers = Leftovers(folder)
        damaged = kill_at_random(folder, options.kills, options.seed, options.launcher, leftovers)
        begin = time.monotonic()
        plan = draw(options.launches, options.seed, options.launcher)
        table, memory, wrong = soak(folder, plan, options.launcher, leftovers)
        leftovers.processes += len(wait_until_gone())
        leftovers.sockets += len(sockets_below(folder))
        print("\n".join(layout(("fault", "injected", "detected", "mis-attributed", "median s"), table)))
        print(f"\n{options.launches} launches in {time.monotonic() - begin:.0f} s, {options.launcher} launcher")
        print("\n".join(memory))
        left = leftovers.count()
    print(
        f"{options.kills} runs killed at a random moment of an update (pytest, its parent of ranks or keeper of stores)"
    )
    print(f"launches wrong: {wrong}, baselines damaged: {damaged}")
    print(f"left behind: {', '.join(f'{kind} {number}' for kind, number in left.items())}")
    return int(bool(wrong or damaged or any(left.values())))


if __name__ == "__main__":
    sys.exit(main())
