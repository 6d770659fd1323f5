"""The launcher ``stand-in-cuda``: real process groups, whose ranks have the simulated CUDA.

Importing this module adds the launcher, also as a pytest plugin: ``-p support.cuda_launcher``.
"""

from __future__ import annotations

import dataclasses

from pytest_distbench.elastic.records import IMPORTS_VARIABLE
from pytest_distbench.launch.site.local import RunningLaunch
from pytest_distbench.launch.starters import LAUNCHERS, LOOPBACK, LauncherKind, LauncherSetup
from pytest_distbench.launch.starters.warm import WarmLauncher
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace

STAND_IN_CUDA = "stand-in-cuda"
PRELOADED = "support.stand_in_cuda"


class CudaLauncher(WarmLauncher):
    """The warm launcher; its ranks take a CPU for CUDA, and gloo for NCCL."""

    name = STAND_IN_CUDA

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        # The ranks read the plan as it is written: they have NCCL, and the process that they come from has none.
        return super().start(replace(plan, backend="gloo") if plan.backend == "nccl" else plan)


def _make(setup: LauncherSetup) -> CudaLauncher:
    return CudaLauncher(dataclasses.replace(setup, preload=(*setup.preload, PRELOADED)))


LAUNCHERS[STAND_IN_CUDA] = LauncherKind(
    help="real groups whose ranks have a simulated CUDA",
    make=_make,
    holds_two=True,
    sets_threads=True,
    variables={**LOOPBACK, IMPORTS_VARIABLE: PRELOADED},
)
