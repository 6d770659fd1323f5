"""What a launch on the nodes of a Slurm allocation costs, beside ``srun`` of the same group with and without torchrun.

    salloc --nodes=2 python benchmarks/slurm_cost.py [--repeats 5]
    python tests/support/slurm_cluster.py 2 -- salloc -Q --nodes=2 python benchmarks/slurm_cost.py   # as root, anywhere

One rank a node; the body is one barrier. *step* is ``srun hostname``, the least that any of them costs; *cmd* is
``--distbench-launcher`` with an ``srun`` for its engine. *to body* is, of a launch of ours, the time until its last
rank begins the body. Methods are interleaved, first on a quiet machine, then beside a load that computes on every CPU
of this host; figures are medians. Absolute seconds belong to this machine at this hour, the ratios travel better.

Beside that load, on two cores and four nodes in namespaces (docs/dev/benchmarks.md has the quiet table)::

    busy              median s  x srun python  to body s
    step                  0.09           0.02
    srun python           5.58           1.00
    srun torchrun        12.39           2.22
    slurm                 0.80           0.14       0.71
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench.records.launch import LaunchRecord

RANK = """
import os, torch.distributed as dist
if "SLURM_PROCID" in os.environ and "RANK" not in os.environ:
    os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def srun(nodes: int, *words: str, **variables: str) -> None:
    """A step with a process on each node."""
    command = ["srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *words]
    subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, stdin=subprocess.DEVNULL)


@dataclass(frozen=True)
class Cost:
    """Seconds of one launch, and those until its last rank began the body; None: that is not known."""

    whole_s: float
    to_body_s: float | None


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Meanwhile a process computes on each CPU of this host."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, and print the tables."""
    from measuring import BARRIER, launched

    from pytest_distbench.hosts.calls import CmdLauncher
    from pytest_distbench.hosts.slurm import SlurmLauncher, read_allocation
    from pytest_distbench.launch.starters import LauncherSetup

    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    engine = "srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --mpi=none {command}"
    names = read_allocation(os.environ).nodes
    nodes, first = len(names), names[0]
    ports = iter(range(24000, 25000))
    with tempfile.TemporaryDirectory() as made:
        script = Path(made) / "rank.py"
        script.write_text(RANK)
        setup = LauncherSetup(directory=Path(made), session=uuid.uuid4().hex, engine=engine)
        by_command, warm = CmdLauncher(setup), SlurmLauncher(replace(setup, session=uuid.uuid4().hex))
        torchrun = ["-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d"]

        def with_torchrun() -> None:
            place = f"--rdzv-endpoint={first}:{next(ports)}"
            by_name = 'exec "$0" "$@" --local-addr=$(hostname) ' + str(script)
            srun(nodes, "bash", "-c", by_name, sys.executable, *torchrun, place)

        def plain() -> None:
            srun(nodes, sys.executable, str(script), MASTER_ADDR=first, MASTER_PORT=str(next(ports)))

        methods: dict[str, Callable[[], LaunchRecord | None]] = {
            "step": lambda: srun(nodes, "hostname"),
            "srun python": plain,
            "cmd": lambda: launched(by_command, Path(made), "barrier", file=BARRIER, world_size=nodes),
            "srun torchrun": with_torchrun,
            "slurm": lambda: launched(warm, Path(made), "barrier", file=BARRIER, world_size=nodes),
        }
        [[first_launch]] = measure({"slurm": methods["slurm"]}, 1).values()  # its parents are up now
        print(f"{nodes} nodes, one rank each, {repeats} times; the first launch of slurm: {first_launch.whole_s:.2f} s")
        for name, around in (("quiet", contextlib.nullcontext()), ("busy", load())):
            with around:
                print_table(name, measure(methods, repeats))
        warm.close()


def measure(methods: Mapping[str, Callable[[], LaunchRecord | None]], repeats: int) -> dict[str, list[Cost]]:
    """Method -> what it cost each time."""
    found: dict[str, list[Cost]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, run in methods.items():
            began = time.perf_counter()
            record = run()
            whole_s = time.perf_counter() - began
            phases = {} if record is None else record.phases
            found[name].append(Cost(whole_s, whole_s - phases["body"] - phases["exit"] if phases else None))
    return found


def print_table(title: str, costs: Mapping[str, list[Cost]]) -> None:
    """One row for a method."""
    least = statistics.median(cost.whole_s for cost in costs["srun python"])
    print(f"\n{title:16}{'median s':>10}{'x srun python':>15}{'to body s':>11}")
    for name, found in costs.items():
        middle = statistics.median(cost.whole_s for cost in found)
        to_body = [cost.to_body_s for cost in found if cost.to_body_s is not None]
        begins = f"{statistics.median(to_body):>11.2f}" if to_body else ""
        print(f"{name:16}{middle:>10.2f}{middle / least:>15.2f}{begins}")


if __name__ == "__main__":
    main()
