"""What one process group costs: warm launcher, torchrun, and the bare floor, side by side in one run.

    python benchmarks/launch_cost.py [--ranks 1 2 4 8] [--repeats 7] [--torchrun-repeats 3] [--json FILE]

The body is empty but for one barrier. *floor* is the least a fresh group of processes can cost: forkserver with torch
loaded, TCPStore, init_process_group, barrier, exit, with no agent, no logs, no reports. Methods are interleaved;
figures are medians, CPU time (of all processes) a mean. Absolute seconds belong to this machine at this hour, the
ratios travel better; those of CPU time also from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pytest_distbench.launch.starters import Launcher


PHASES = ("launcher", "process_start", "import", "rendezvous", "body", "exit")


def floor_rank(rank: int, world_size: int, port: int) -> None:
    """A rank of the bare floor."""
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    dist.barrier()
    os._exit(0)


def measure_floor(world_size: int) -> dict[str, float]:
    """Seconds of one bare group."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    context = multiprocessing.get_context("forkserver")
    start = time.perf_counter()
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    ranks = [context.Process(target=floor_rank, args=(r, world_size, store.port)) for r in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    return {"total": time.perf_counter() - start}


def used_s() -> float:
    """CPU seconds of this process, its children, and those that each has waited for."""
    live = [child.cpu_times() for child in psutil.Process().children()]
    below = [times.user + times.system + times.children_user + times.children_system for times in live]
    return sum(os.times()[:4]) + sum(below)


def measure_launcher(launcher: Launcher, world_size: int, folder: Path) -> dict[str, float]:
    """Seconds of one launch, in total and by phase."""
    from measuring import BARRIER, launched  # not above: a process of the floor imports this file again

    start = time.perf_counter()
    record = launched(launcher, folder, "barrier", file=BARRIER, world_size=world_size)
    total = time.perf_counter() - start
    return {"total": total, **record.phases}


def main() -> None:
    """Measure and print."""
    from pytest_distbench.launch.starters import LauncherSetup
    from pytest_distbench.launch.starters.parent import PRELOAD
    from pytest_distbench.launch.starters.torchrun import TorchrunLauncher
    from pytest_distbench.launch.starters.warm import WarmLauncher

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--torchrun-repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        setups = [LauncherSetup(directory=folder, session=uuid.uuid4().hex) for _ in range(2)]
        warm, torchrun = WarmLauncher(setups[0]), TorchrunLauncher(setups[1])
        methods: dict[str, Callable[[int], dict[str, float]]] = {
            "floor": measure_floor,
            "warm": lambda ranks: measure_launcher(warm, ranks, folder),
            "torchrun": lambda ranks: measure_launcher(torchrun, ranks, folder),
        }
        measure_floor(1)
        measure_launcher(warm, 1, folder)  # both forkservers are up now
        for ranks in options.ranks:
            rows: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
            for repeat in range(options.repeats):
                for method, measure in methods.items():
                    if method != "torchrun" or repeat < options.torchrun_repeats:
                        before = used_s()
                        found_now = measure(ranks)
                        rows[method].append({**found_now, "cpu": used_s() - before})
            found[str(ranks)] = rows
        warm.close()
    print_table(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def print_table(found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Medians in milliseconds, ratios, and the phases of both launchers."""
    print(
        f"{'ranks':>5} {'method':<9} {'n':>2} {'total ms':>9} {'x floor':>7} {'CPU ms':>7} {'x floor':>7}  phases, ms"
    )
    for ranks, rows in found.items():
        medians = {m: statistics.median(r["total"] for r in measured) for m, measured in rows.items() if measured}
        used = {m: statistics.mean(r["cpu"] for r in measured) for m, measured in rows.items() if measured}
        for method in medians:
            measured = rows[method]
            phases = "  ".join(
                f"{p} {statistics.median(m[p] for m in measured) * 1e3:.1f}" for p in PHASES if p in measured[0]
            )
            print(
                f"{ranks:>5} {method:<9} {len(measured):>2} {medians[method] * 1e3:>9.1f} "
                f"{medians[method] / medians['floor']:>7.2f} {used[method] * 1e3:>7.1f} "
                f"{used[method] / used['floor']:>7.2f}  {phases}"
            )


if __name__ == "__main__":
    main()
