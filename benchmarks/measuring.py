"""One launch of a function in ``bodies.py``, or of a script, for the benchmarks that need no pytest run around it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_distbench.elastic.engines import ENGINES, torch_release
from pytest_distbench.elastic.records import Change, ElasticJob, Job
from pytest_distbench.launch.starters import LAUNCHERS, LOOPBACK, Launcher
from pytest_distbench.launch.supervise import Side, supervise
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks

BODIES, BARRIER = (Path(__file__).resolve().with_name(name) for name in ("bodies.py", "barrier.py"))


def launched(
    launcher: Launcher,
    folder: Path,
    function: str,
    *,
    file: Path = BODIES,
    world_size: int = 2,
    params: Mapping[str, object] | None = None,
) -> LaunchRecord:
    """Launch a body on gloo ranks of one thread each.

    Args:
        launcher: starts the ranks.
        folder: for the launch's own folder and the ranks' data.
        function: of the file.
        file: that of the body.
        world_size: ranks.
        params: of the body.

    Raises:
        SystemExit: the launch did not pass.
    """
    body = BodyReference(file=str(file), function=function)
    record = launch_once(launcher, folder, Ranks(body=body, params=dict(params or {})), world_size=world_size)
    if record.outcome != "passed":
        raise SystemExit(f"{launcher.name}: {record.reason}")
    return record


def launch_once(
    launcher: Launcher, folder: Path, work: Ranks, *, world_size: int = 2, timeout_s: float = 300.0
) -> LaunchRecord:
    """Launch gloo ranks of one thread each, whatever becomes of them."""
    directory = folder / uuid.uuid4().hex
    directory.mkdir()
    plan = LaunchPlan(
        index=0,
        world_size=world_size,
        backend="gloo",
        device="cpu",
        work=work,
        timeout_s=timeout_s,
        folder=os.getcwd(),
        directory=str(directory),
        data_dir=str(folder),
        python_path=sys.path,
        variables={**os.environ, "OMP_NUM_THREADS": "1"},
        set_threads=1 if LAUNCHERS[launcher.name].sets_threads else None,
    )
    return supervise(plan, Side(launcher=lambda: launcher))


def elastic_plan(
    folder: Path,
    engine: str,
    changes: Sequence[Change],
    *,
    nodes: tuple[int, int],
    start: int | None = None,
    seed: int = 0,
    checkpoint_every: int = 10,
    body: BodyReference | None = None,
    params: Mapping[str, object] | None = None,
) -> LaunchPlan:
    """The plan of a small elastic training that ends when its changes were carried out.

    Args:
        folder: for the launch's own folder.
        engine: a row of the table of engines.
        changes: of the membership.
        nodes: fewest and most.
        start: nodes at the beginning; None: the most.
        seed: of the training.
        checkpoint_every: steps.
        body: another training.
        params: of that training.
    """
    directory = folder / uuid.uuid4().hex
    directory.mkdir()
    kind = ENGINES[engine]
    job = ElasticJob(
        least=nodes[0],
        most=nodes[1],
        start=nodes[1] if start is None else start,
        plan=list(changes),
        engine=engine,
        version=torch_release(),
        timers=kind.all_timers({}),
        checkpoint_every=checkpoint_every,
        ends_after=1 if body is None else None,
    )
    return LaunchPlan(
        index=0,
        world_size=job.most,
        backend="gloo",
        device="cpu",
        work=Job(
            body=body or BodyReference(file=str(BODIES), function="elastic_training"),
            params=dict(params or {}),
            seeds=[seed],
            job=job,
        ),
        timeout_s=600.0,
        folder=os.getcwd(),
        directory=str(directory),
        data_dir=str(folder),
        python_path=sys.path,
        variables={**LOOPBACK, **os.environ, "OMP_NUM_THREADS": "1"},
        set_threads=1,
    )
