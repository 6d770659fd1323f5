"""What the first verdict costs: one exact case in a new pytest, beside a pytest that only imports torch, and torchrun.

    python benchmarks/first_verdict.py [--repeats 15] [--ranks 2 8] [--only WORD ...]

*floor* is ``pytest -p no:distbench`` of one test that imports torch and torch.distributed. The other rows are one
launch each, compared with a stored baseline: bodies that call ``all_reduce`` once or step an optimizer under DDP, with
their imports inside as in the README; *torch at the top* is the first of them in a module that imports torch itself,
which pytest then has to import, too. *torchrun* runs the same body. *collect* is ``pytest --collect-only`` of the test,
without and with the plugin.

No other plugin is loaded on either side (PYTEST_DISABLE_PLUGIN_AUTOLOAD). Byte code is cached, as an installation
caches it: each row runs once before it counts, without PYTHONDONTWRITEBYTECODE. The rows take turns, in another order
each time; figures are medians. CPU seconds are user and system of all processes that a run starts, also of those that
it leaves to others. *MiB* are the peaks of the process that forks the ranks, and of pytest's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pytest_distbench.launch.site.processes import adopt_orphans

BODIES = {
    "all_reduce": """
    import torch
    import torch.distributed as dist

    x = torch.ones(1024)
    dist.all_reduce(x)
    result = float(x.sum())
""",
    "optimizer": """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    result = float(loss)
""",
}
TEST = """
def body(rank):
{body}
    rank.record("result", result, better="exact")


def test_exact(distbench):
    distbench.run(body)
"""
SCRIPT = """
def body():
{body}
    return result


if __name__ == "__main__":
    import torch.distributed as dist

    dist.init_process_group("gloo")
    body()
    dist.destroy_process_group()
"""
FLOOR = """
def test_imports():
    import torch
    import torch.distributed
"""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
WITHOUT, WITH = ["-p", "no:distbench"], ["-p", "pytest_distbench.plugin", "--distbench-baselines=baselines"]


@dataclass
class Row:
    """One kind of run: its command, and CPU and wall seconds of each."""

    words: list[str]
    seconds: list[tuple[float, float]] = field(default_factory=list)
    peaks: tuple[int, int] = (0, 0)  # bytes: of the process that forks ranks, and of pytest's

    def median(self, index: int) -> float:
        """Median of CPU (0) or wall (1) seconds."""
        return statistics.median(one[index] for one in self.seconds)


def run(words: list[str], folder: Path, *, peaks: list[tuple[int, int]] | None = None) -> tuple[float, float]:
    """CPU and wall seconds of a command with all that it starts; into ``peaks`` go bytes of its child and its own."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(folder)}  # torchrun leaves folders there
    log = folder / "output.txt"
    before, start = used_s(), time.perf_counter()
    with log.open("w") as out:
        process = subprocess.Popen(words, cwd=folder, env=variables, stdout=out, stderr=out)
    while peaks is not None and process.poll() is None:
        peaks.append(memory_peaks(process.pid))
        time.sleep(0.02)
    code = process.wait()
    wall_s = time.perf_counter() - start
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # for what it has left behind, which is this process's now
    if code:
        raise SystemExit(f"{' '.join(words)} ended with {code}:\n{log.read_text()}")
    return used_s() - before, wall_s


def used_s() -> float:
    """CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_peaks(pid: int) -> tuple[int, int]:
    """Peak resident bytes so far of the largest child of a process, and of itself; 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return max([0, *map(peak, psutil.Process(pid).children())]), peak(psutil.Process(pid))
    return 0, 0


def peak(process: psutil.Process) -> int:
    """Peak resident bytes of a process, or 0 if it is gone."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return 0


def make_rows(folder: Path, ranks: list[int]) -> dict[str, Row]:
    """Write the tests and scripts, and record the baselines."""
    (folder / "test_floor.py").write_text(FLOOR)
    rows = {"floor": Row([*PYTEST, *WITHOUT, "test_floor.py"])}
    for name, body in BODIES.items():
        (folder / f"test_{name}.py").write_text(TEST.format(body=body))
        (folder / f"{name}.py").write_text(SCRIPT.format(body=body))
    top = "import torch\nimport torch.distributed as dist\n\n" + TEST.format(body=BODIES["all_reduce"])
    (folder / "test_top.py").write_text(top)
    files = {**{name: f"test_{name}.py" for name in BODIES}, "torch at the top": "test_top.py"}
    for number in ranks:
        for name, file in files.items():
            case = [*PYTEST, *WITH, file, "--world-size", str(number)]
            run([*case, "--distbench-update=new"], folder)
            rows[f"{name}, {number} ranks"] = Row(case)
        for name in BODIES:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
            rows[f"{name}, {number} ranks, torchrun"] = Row([*torchrun, f"{name}.py"])
    collect = [*PYTEST, "--collect-only", "test_all_reduce.py"]
    rows["collect without the plugin"] = Row([*collect, *WITHOUT])
    rows["collect"] = Row([*collect, *WITH])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name contains one of these, and the floor")
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = make_rows(folder, options.ranks)
        rows = {n: row for n, row in made.items() if n == "floor" or any(word in n for word in options.only)}
        for row in rows.values():
            seen: list[tuple[int, int]] = []
            run(row.words, folder, peaks=seen)
            row.peaks = max(child for child, _ in seen), max(own for _, own in seen)
        order = list(rows.values())
        for turn in range(options.repeats):
            for row in (*order[turn % len(order) :], *order[: turn % len(order)]):
                row.seconds.append(run(row.words, folder))
    print(f"{'':<30}{'CPU s':>7}{'x floor':>9}{'wall s':>9}{'x floor':>9}{'MiB: forks':>12}{'pytest':>8}")
    for name, row in rows.items():
        cells = [row.median(0), row.median(0) / rows["floor"].median(0)]
        cells += [row.median(1), row.median(1) / rows["floor"].median(1)]
        forks, own = (f"{peak / 2**20:.0f}" if peak and "torchrun" not in name else "" for peak in row.peaks)
        print(f"{name:<30}{cells[0]:>7.2f}{cells[1]:>9.2f}{cells[2]:>9.2f}{cells[3]:>9.2f}{forks:>12}{own:>8}")
    print(f"medians of {options.repeats}; load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
