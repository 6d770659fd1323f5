"""``python -m pytest_distbench.launch.elastic PLAN``: the controller of one elastic job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from pytest_distbench.launch import forkserver
from pytest_distbench.launch.elastic.controller import Controller
from pytest_distbench.launch.elastic.engines import ENGINES, EngineSetup
from pytest_distbench.launch.elastic.progress import CannotGoOn
from pytest_distbench.records.plan import LaunchPlan


def main(path: str) -> int:
    """Run the job of a plan. Returns the exit code; why it is not 0 is in a file of the launch."""
    plan = msgspec.json.decode(Path(path).read_bytes(), type=LaunchPlan)
    assert plan.elastic is not None
    plan.files.checkpoints.mkdir(exist_ok=True)
    setup = EngineSetup(job=plan.elastic, files=plan.files, variables=dict(os.environ), projects=plan.preload)
    try:
        Controller(plan.elastic, ENGINES[plan.elastic.engine].make(setup), plan.files.timeline).run()
    except CannotGoOn as error:
        plan.files.trouble.write_text(str(error))
        return 1
    finally:
        forkserver.let_helpers_end()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # finalising the store's threads is nobody's business
