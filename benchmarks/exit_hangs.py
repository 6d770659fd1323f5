"""How often launches of ordinary DDP code hang at their exit: the default launcher, the torchrun launcher, torchrun.

    python benchmarks/exit_hangs.py                                  # four cells, about half an hour
    python benchmarks/exit_hangs.py --machine busy --workload "own destroy" --torchrun-launches 0    # one, a minute

Two workloads on two gloo ranks: a script that trains with DistributedDataParallel and destroys its group, and a
function that destroys the group it is given while models of its still refer to it. Each on the machine as it is, and
with a process in a busy loop on every core: four cells. In each the three ways take turns. A launch hangs when it has
not ended 30 s after its ranks were up; plain torchrun, which does not tell when that is, has 120 s more. Where torch's
own destructor hangs, it does so while it holds the interpreter's lock: nothing in the rank can end it.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from measuring import tried

from pytest_distbench.launch.contract import Launcher
from pytest_distbench.launch.torchrun import TorchrunLauncher
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.records.work import BodyReference

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LIMIT_S = 30.0
START_S = 120.0
MACHINES = {"quiet": 0, "busy": os.cpu_count() or 1}
"""How many cores compute something else."""
WORKLOADS = {"DDP script": ("ddp_script.py", ""), "own destroy": ("destroying.py", "train")}


def under_launcher(launcher: Launcher, folder: Path) -> Callable[[str], bool]:
    """Makes one launch under a launcher of ours; returns whether it hung."""

    def launch(workload: str) -> bool:
        file, function = WORKLOADS[workload]
        body = BodyReference(file=str(SCRIPTS / file), function=function)
        record = tried(launcher, folder, body, timeout_s=LIMIT_S)
        if record.outcome != "passed" and not record.timed_out:
            raise SystemExit(f"{launcher.name}: {workload}: {record.reason}")
        return bool(record.timed_out)

    return launch


def plain(workload: str) -> bool:
    """One launch by the torchrun command; returns whether it hung. One that fails is made again, twice at most."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                [*command, str(SCRIPTS / WORKLOADS[workload][0])],
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                _, said = process.communicate(timeout=START_S + LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return True
            if process.returncode == 0:
                return False
    raise SystemExit(f"torchrun: {workload}: exit code {process.returncode}\n{said.decode()[-2000:]}")


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """A busy loop on each of so many cores."""
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(cores)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    while True:
        pass


def main() -> None:
    """Launch, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=75, help="of the default launcher, in each cell")
    parser.add_argument("--torchrun-launches", type=int, default=20, help="of each of the two slow ways, in each cell")
    parser.add_argument("--machine", choices=MACHINES, help="only so; otherwise both")
    parser.add_argument("--workload", choices=WORKLOADS, help="only this one; otherwise both")
    options = parser.parse_args()
    print(f"{'machine':<8} {'workload':<11} {'way':<19} {'launches':>8} {'hangs':>6} {'median s':>9} {'slowest s':>10}")
    hangs = 0
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        warm, torchrun = WarmLauncher(folder, uuid.uuid4().hex), TorchrunLauncher(uuid.uuid4().hex)
        ways = {
            "default launcher": (under_launcher(warm, folder), options.launches),
            "torchrun launcher": (under_launcher(torchrun, folder), options.torchrun_launches),
            "plain torchrun": (plain, options.torchrun_launches),
        }
        if options.launches:
            ways["default launcher"][0]("DDP script")  # the forkserver is up now
        for machine in [options.machine] if options.machine else MACHINES:
            with busy(MACHINES[machine]):
                for workload in [options.workload] if options.workload else WORKLOADS:
                    hangs += measure(machine, workload, {way: cell for way, cell in ways.items() if cell[1]})
        warm.close()
    raise SystemExit(1 if hangs else 0)


def measure(machine: str, workload: str, ways: dict[str, tuple[Callable[[str], bool], int]]) -> int:
    """One workload on one machine, all ways in turns; prints a line for each and returns the hangs under ours."""
    found: dict[str, list[tuple[bool, float]]] = {way: [] for way in ways}
    for number in range(max(count for _, count in ways.values())):
        for way, (run, count) in ways.items():
            if number < count:
                start = time.perf_counter()
                hung = run(workload)
                found[way].append((hung, time.perf_counter() - start))
    for way, launches in found.items():
        hangs = sum(h for h, _ in launches)
        seconds = [s for h, s in launches if not h] or [float("nan")]
        print(
            f"{machine:<8} {workload:<11} {way:<19} {len(launches):>8} {hangs:>6} {statistics.median(seconds):>9.2f} "
            f"{max(seconds):>10.2f}",
            flush=True,
        )
    return sum(h for way in found if way != "plain torchrun" for h, _ in found[way])


if __name__ == "__main__":
    main()
