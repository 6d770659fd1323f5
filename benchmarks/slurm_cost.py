"""What a launch on the nodes of a Slurm allocation costs, beside ``srun`` of the same group with and without torchrun.

    salloc --nodes=2 python benchmarks/slurm_cost.py [--repeats 5]
    python tests/support/slurm_cluster.py 2 -- salloc -Q --nodes=2 python benchmarks/slurm_cost.py   # as root, anywhere

One rank a node; the body is one barrier. *step* is ``srun hostname``, the least that any of them costs; *cmd launcher*
is ``--distbench-launcher-cmd`` with an ``srun`` for its engine. Methods are interleaved; figures are medians. Absolute
seconds belong to this machine at this hour, the ratios travel better.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

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


def main() -> None:
    """Measure, and print the table."""
    from measuring import launched

    from pytest_distbench.launch.starters.cmd import CmdLauncher
    from pytest_distbench.launch.starters.contract import Engine
    from pytest_distbench.launch.starters.slurm import SlurmLauncher

    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    launcher = SlurmLauncher(uuid.uuid4().hex)
    engine = Engine(template="srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --mpi=none {command}")
    by_command = CmdLauncher(uuid.uuid4().hex, engine)
    nodes, first = len(launcher.allocation.nodes), launcher.allocation.nodes[0]
    ports = iter(range(24000, 25000))
    with tempfile.TemporaryDirectory() as made:
        script = Path(made) / "rank.py"
        script.write_text(RANK)
        torchrun = ["-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d"]

        def with_torchrun() -> None:
            place = f"--rdzv-endpoint={first}:{next(ports)}"
            by_name = 'exec "$0" "$@" --local-addr=$(hostname) ' + str(script)
            srun(nodes, "bash", "-c", by_name, sys.executable, *torchrun, place)

        def plain() -> None:
            srun(nodes, sys.executable, str(script), MASTER_ADDR=first, MASTER_PORT=str(next(ports)))

        methods: dict[str, Callable[[], object]] = {
            "step": lambda: srun(nodes, "hostname"),
            "srun python": plain,
            "slurm launcher": lambda: launched(launcher, Path(made), "barrier", world_size=nodes),
            "cmd launcher": lambda: launched(by_command, Path(made), "barrier", world_size=nodes),
            "srun torchrun": with_torchrun,
        }
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(repeats):
            for name, run in methods.items():
                began = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - began)
    least = statistics.median(seconds["srun python"])
    print(f"{nodes} nodes, one rank each, {repeats} times\n")
    print(f"{'method':16}{'median s':>10}{'x srun python':>15}")
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(f"{name:16}{middle:>10.2f}{middle / least:>15.2f}")


if __name__ == "__main__":
    main()
