"""A process that some other launcher has started (``accelerate launch``, ``mpirun``), below a command that we measure.

It is no rank of ours: it has no line to pytest, and joins no group for us. But what its script records is wanted too.
"""

from __future__ import annotations

import atexit
import os

import msgspec

from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.worker import script
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.line import NoLine
from pytest_distbench.worker.script import ScriptNotes

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""How torchrun, Open MPI, MPICH and Slurm name them."""

UNFINISHED = "it recorded numbers, and ended before it could write them down: by os._exit, or by a signal?"


def begin(plan_path: str) -> ScriptNotes:
    """Begin to note what this process records; it is written when the process ends."""
    plan = LaunchPlan.read_from(plan_path)
    environment = {
        "RANK": _first(_RANK, "0"),
        "LOCAL_RANK": _first(_LOCAL_RANK, "0"),
        "WORLD_SIZE": _first(_WORLD_SIZE, "1"),
        "GROUP_RANK": os.environ.get("GROUP_RANK", "0"),
    }
    context = RankContext(plan, NoLine(), environment, watch=Watch(is_on=False))
    notes = script.CURRENT = ScriptNotes(context)
    owner = os.getpid()
    _write(plan.files, context, UNFINISHED)

    def finish() -> None:
        if os.getpid() == owner:  # not in a child that was forked
            notes.finish()
            _write(plan.files, context, "")

    atexit.register(finish)
    return notes


def _first(names: tuple[str, ...], otherwise: str) -> str:
    return next((os.environ[name] for name in names if name in os.environ), otherwise)


def _write(files: LaunchFiles, context: RankContext, trouble: str) -> None:
    report = RankReport(
        rank=context.rank,
        outcome="failed" if trouble else "passed",
        phase="body",
        phases={},
        reason=trouble,
        observations=[] if trouble else context.notebook.observations,
    )
    draft = files.report(context.rank).with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(report))
    draft.rename(files.report(context.rank))
