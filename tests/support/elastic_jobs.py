"""A small elastic training, and its launch without a pytest run around it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_distbench.elastic.engines import ENGINES, torch_release
from pytest_distbench.elastic.records import Change, ElasticJob, Job
from pytest_distbench.launch.starters import LOOPBACK
from pytest_distbench.records.plan import BodyReference, LaunchPlan
from support.plans import BODY, make_plan

if TYPE_CHECKING:
    from pytest_distbench import ElasticRank

CHECKPOINT_EVERY = 10


def elastic_plan(folder: Path, engine: str, changes: Sequence[Change], *, nodes: tuple[int, int]) -> LaunchPlan:
    """The plan of a job that begins with all its nodes, and trains until its changes have been carried out."""
    job = ElasticJob(
        least=nodes[0],
        most=nodes[1],
        start=nodes[1],
        plan=list(changes),
        engine=engine,
        version=torch_release(),
        timers=ENGINES[engine].all_timers({}),
        checkpoint_every=CHECKPOINT_EVERY,
        ends_after=1,
    )
    return LaunchPlan(
        index=0,
        world_size=job.most,
        backend="gloo",
        device="cpu",
        work=Job(body=BodyReference(file=__file__, function="train"), job=job),
        timeout_s=300.0,
        directory=str(folder),
        data_dir=str(folder),
        folder=str(folder),
        python_path=sys.path,
        variables={**LOOPBACK, **os.environ, "OMP_NUM_THREADS": "1"},
        set_threads=1,
    )


def train(rank: ElasticRank) -> None:
    """Until the plan lets it end."""
    import time

    import torch
    from torch.nn.parallel import DistributedDataParallel

    (rank.data_dir / f"seed-{os.getpid()}").write_text(f"{torch.initial_seed()}")  # which chance gave this worker
    torch.manual_seed(rank.seed)
    inputs = torch.randn(101, 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = rank.training(model=model, optimizer=optimizer)
    parallel = DistributedDataParallel(model)
    for chosen in training.batches(samples=len(inputs), batch=4, epochs=10_000):
        loss = parallel(inputs[chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)
        time.sleep(0.01)


def job_plan(directory: Path, job: ElasticJob, *, body: BodyReference = BODY, **plan: Any) -> LaunchPlan:
    """The plan of an elastic job."""
    return make_plan(directory, world_size=job.most, work=Job(body=body, job=job), **plan)
