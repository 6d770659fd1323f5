"""One worker's life in an elastic job, a slot in one generation, what its body is given, and a server's life in a pool.

torchrun starts it by ``python -m pytest_distbench.worker elastic PLAN``, and ends it at the next change of membership.
What it does is in the timeline; how it ended is in a report only where its body returned.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from pytest_distbench.elastic.records import IMPORTS_VARIABLE, SERVING, SLOT_VARIABLE, Job, Pool
from pytest_distbench.elastic.timeline import event
from pytest_distbench.elastic.worker.training import ElasticRank
from pytest_distbench.records.event import append
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.worker import bodies
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.forked import check_fork
from pytest_distbench.worker.leaving import classify, flush_output, leave
from pytest_distbench.worker.load import process_began
from pytest_distbench.worker.membership import join_group, leave_group
from pytest_distbench.worker.process import (
    MemoryPeak,
    arm_nccl,
    note_autocast,
    software,
    take_output,
    take_program,
    take_signals,
)

RAISED = 13
"""Exit code of a worker or server that raised. A worker ends at once: unwinding takes seconds, in which peers wait."""


def main(plan_path: str) -> NoReturn:
    """Run the body of a plan as the worker that the environment names."""
    plan = LaunchPlan.read_from(plan_path)
    work = plan.expect(Job)
    slot = int(os.environ[SLOT_VARIABLE])
    context: ElasticRank | None = None
    take_output(plan.files.log(slot))
    take_signals(plan.files.stacks(slot))
    sys.path[:] = plan.python_path
    take_program(work.body.file)
    if plan.set_threads is not None:
        torch.set_num_threads(plan.set_threads)
    for name in filter(None, os.environ.get(IMPORTS_VARIABLE, "").split(",")):
        importlib.import_module(name)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    append(
        plan.files.timeline,
        event(
            "started", t=HostClock.monotonic(), slot=slot, pid=os.getpid(), process_t=process_began(), restarts=restarts
        ),
    )
    try:
        if plan.device == "cuda":
            check_fork()
            torch.cuda.set_device(plan.devices[slot])
            arm_nccl(plan, slot)
        note_autocast()
        memory = MemoryPeak(plan)
        context = _join_generation(plan, slot)
        bodies.call(bodies.load(work.body), context)
        context.wait_for_queued()
        context.check_complete()
    except BaseException as raised:  # noqa: BLE001 whatever ends a body is told
        _, _, error = classify(raised)
        flush_output()
        generation = None if context is None else context.generation
        append(
            plan.files.timeline,
            event("raised", t=HostClock.monotonic(), slot=slot, pid=os.getpid(), generation=generation, error=error),
        )
        os._exit(RAISED)
    _report(plan, context, memory)
    append(plan.files.timeline, event("finished", t=HostClock.monotonic(), slot=slot, generation=context.generation))
    flush_output()
    leave(lambda what: None)
    leave_group()
    os._exit(0)


def count_generation(folder: Path) -> int:
    """A number that no earlier generation of a launch has had. Called by rank 0 alone."""
    number = 0
    while True:
        try:
            (folder / f"generation{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def _join_generation(plan: LaunchPlan, slot: int) -> ElasticRank:
    job = plan.expect(Job).job
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", plan.devices[slot]) if plan.device == "cuda" else torch.device("cpu")
    join_group(plan.backend, rank=rank, world_size=world_size, timeout_s=job.collective_s, device=device)
    number = torch.tensor([count_generation(Path(plan.directory)) if rank == 0 else 0], device=device)
    dist.broadcast(number, src=0)
    generation = int(number.item())
    append(
        plan.files.timeline,
        event(
            "joined",
            t=HostClock.monotonic(),
            slot=slot,
            pid=os.getpid(),
            generation=generation,
            rank=rank,
            world_size=world_size,
        ),
    )
    return ElasticRank(plan, slot, generation)


def _report(plan: LaunchPlan, context: ElasticRank, memory: MemoryPeak) -> None:
    """What the body has recorded in the last generation, as ranks of other launches leave it."""
    RankReport(
        rank=context.rank,
        outcome="passed",
        phase="body",
        phases={},
        observations=context.notebook.observations,
        peak_memory_bytes=memory.num_bytes(),
        software=software(plan) if context.rank == 0 else {},
    ).write(plan.files)


def serve(path: str, number: str) -> NoReturn:
    """Be a server of a pool in its slot: load what the plan names, say so, and stay until SIGTERM asks it to go."""
    plan, slot = LaunchPlan.read_from(path), int(number)
    task, timeline = plan.expect(Pool).tasks[SERVING], plan.files.pool_timeline
    sys.path[:] = plan.python_path
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").partition(",")[0] or 1))
    try:
        load: Callable[..., object] = bodies.load(task.body)
        _loaded = load(**task.params)  # it keeps what it returns for as long as it lives
    except Exception as error:  # noqa: BLE001 whatever it raises is told
        told = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
        append(timeline, event("server_failed", t=HostClock.monotonic(), slot=slot, error=told))
        os._exit(RAISED)
    append(timeline, event("server_ready", t=HostClock.monotonic(), slot=slot))
    while True:
        signal.pause()
