"""A step of a Slurm job: one ``srun`` that starts a process on each of some nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_distbench.launch.starters.calls import Callers
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS
from pytest_distbench.records.host_variables import of_a_step


def start_step(
    nodes: Sequence[str],
    command: Callable[[Sequence[str]], Sequence[str]],
    *,
    gpus: int,
    variables: Mapping[str, str],
    log: Path,
    session: str,
    python_path: Sequence[str] | None = None,
) -> Callers:
    """Start a process on each of the nodes, which calls.

    Args:
        nodes: where.
        command: makes what runs there from the words that tell it where this process is.
        gpus: that the job has on each; 0: none, or nobody knows.
        variables: of the processes, but for what is of the job's tasks.
        log: gets what srun and the processes print.
        session: cookie of all that they start.
        python_path: where they find this package; None: as here.
    """
    path = sys.path if python_path is None else python_path
    return Callers(
        lambda where, _: [*_srun(nodes, gpus), *command(where)],
        environment={**of_a_step(variables), **NO_REVERSE_DNS, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        count=len(nodes),
        names=nodes,
        log=log,
        session=session,
        advice="Are the nodes up (sinfo; salloc --exclude leaves one out), do they reach this host, and have they "
        "Python and pytest-distbench under the paths of this one?",
    )


def _srun(nodes: Sequence[str], gpus: int) -> list[str]:
    """Starts one process on each of the nodes, beside whatever runs there; where one ends, the others go on.

    Each has all GPUs of the job there: where srun is told nothing, the job's own share of a task counts.
    """
    of_gpus = [f"--gpus-per-node={gpus}", "--gpu-bind=none"] if gpus else []
    return [
        "srun", "--overlap", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}", "--distribution=block", "--cpu-bind=none", "--mpi=none", "--input=none",
        "--unbuffered", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--export=ALL", "--label", *of_gpus,
    ]  # fmt: skip
