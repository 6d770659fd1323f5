"""``python -m pytest_distbench.jobs.control PLAN``: the controller of one elastic job."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from pytest_distbench.jobs.control.controller import Controller
from pytest_distbench.jobs.control.script import ScriptWatch
from pytest_distbench.jobs.engines.contract import CannotGoOn, EngineSetup
from pytest_distbench.jobs.engines.outputs import NodeOutputs
from pytest_distbench.jobs.engines.table import ENGINES
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.records.plan import BodyReference, Job, LaunchPlan


def main(path: str) -> int:
    """Run the job of a plan. Returns the exit code; why it is not 0 is in a file of the launch."""
    plan = LaunchPlan.read_from(path)
    work = plan.expect(Job)
    job = work.job
    plan.files.checkpoints.mkdir(exist_ok=True)
    setup = EngineSetup(job=job, files=plan.files, variables=dict(os.environ), projects=plan.preload)
    watch = None
    if job.steps is not None:
        outputs = NodeOutputs(plan.files)
        watch = ScriptWatch(plan.files, outputs, job.steps)
        setup = replace(setup, outputs=outputs, script=_script(work.body), devices=plan.devices)
    try:
        Controller(job, ENGINES[job.engine].make(setup), plan.files.timeline, script=watch).run()
    except CannotGoOn as error:
        plan.files.trouble.write_text(str(error))
        return 1
    finally:
        forkserver.let_helpers_end()
    return 0


def _script(body: BodyReference) -> list[str]:
    """A script as torchrun's command line has it; empty: a body is none."""
    if not body.is_script:
        return []
    return [*(["-m", body.module] if body.module else [body.file]), *body.arguments]


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # finalising the store's threads is nobody's business
