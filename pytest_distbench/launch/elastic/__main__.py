"""``python -m pytest_distbench.launch.elastic PLAN``: the controller of one elastic job, and the host of its store."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import msgspec

from pytest_distbench.launch.elastic.controller import CannotGoOn, Controller
from pytest_distbench.launch.elastic.outputs import NodeOutputs
from pytest_distbench.launch.elastic.script import ScriptWatch
from pytest_distbench.launch.elastic.torchrun import TorchrunEngine
from pytest_distbench.records.plan import BodyReference, LaunchPlan
from pytest_distbench.worker.torch_internals import store_on

STORE_S = 60.0
"""How long agents and workers wait for the store."""


def main(path: str) -> int:
    """Run the job of a plan. Returns the exit code; why it is not 0 is in a file of the launch."""
    plan = msgspec.json.decode(Path(path).read_bytes(), type=LaunchPlan)
    job = plan.elastic
    assert job is not None
    plan.files.checkpoints.mkdir(exist_ok=True)
    store = store_on(socket.create_server(("127.0.0.1", 0)), timeout_s=STORE_S)
    outputs = watch = None
    if job.steps is not None:
        outputs = NodeOutputs(plan.files)
        watch = ScriptWatch(plan.files, outputs, job.steps)
    engine = TorchrunEngine(
        job,
        plan.files,
        store.port,
        variables=dict(os.environ),
        devices=plan.devices if job.steps is not None else (),
        outputs=outputs,
        script=_script(plan.body),
    )
    try:
        Controller(job, engine, plan.files.timeline, script=watch).run()
    except CannotGoOn as error:
        plan.files.trouble.write_text(str(error))
        return 1
    return 0


def _script(body: BodyReference) -> list[str]:
    """A script as torchrun's command line has it; empty: a body is none."""
    if not body.is_script:
        return []
    return [*(["-m", body.module] if body.module else [body.file]), *body.arguments]


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # finalising the store's threads is nobody's business
