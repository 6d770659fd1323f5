"""The torchrun command line tool as a launcher: slower, and exactly what users run."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import psutil

from pytest_distbench.launch.site import Exit, processes
from pytest_distbench.launch.starters import NO_REVERSE_DNS, Launcher
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import SESSION_VARIABLE

if TYPE_CHECKING:
    from pytest_distbench.launch.site.local import LocalSite, RunningLaunch
    from pytest_distbench.launch.starters import LauncherSetup

LOOPBACK_RENDEZVOUS = "distbench-loopback"
"""An entry point for torchrun: a store on 127.0.0.1 only, where ``--standalone`` listens on all addresses."""

_EXIT_CODES = re.compile(r"rank\s*: (\d{1,9}) .*\n\s*exitcode\s*: (-?\d{1,9})", re.ASCII)
"""Failed ranks and exit codes in torchrun's closing table."""

_MAIN = "import gc; gc.disable(); from torch.distributed.run import main; gc.freeze(); gc.enable(); main()"
"""The command ``torchrun``. Without this, garbage collection during torch's import is a sixth of its start."""

TORCHRUN = [sys.executable, "-c", _MAIN]


class TorchrunLauncher(Launcher):
    name = "torchrun"

    def __init__(self, setup: LauncherSetup) -> None:
        self.session = setup.session

    def open(self, plan: LaunchPlan) -> LocalSite:
        from pytest_distbench.launch.site.local import LocalSite  # late: torch loads this module in every rank

        return LocalSite(self, plan)

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        marked = replace(plan, variables={**plan.variables, SESSION_VARIABLE: self.session})
        command = [
            *TORCHRUN,
            f"--rdzv-backend={LOOPBACK_RENDEZVOUS}",
            "--rdzv-endpoint=127.0.0.1:0",
            "--nnodes=1",
            f"--nproc-per-node={plan.processes}",
            f"--log-dir={plan.files.torchrun_logs}",
            "--local-addr=127.0.0.1",
        ]
        return TorchrunLaunch(command, marked, self.leftovers)

    def leftovers(self) -> list[psutil.Process]:
        return processes.find_marked(SESSION_VARIABLE, self.session)

    def close(self) -> None:
        processes.kill(self.leftovers())


class TorchrunLaunch:
    """A torchrun whose ranks run a stored plan, and end with pytest. ``leftovers`` finds processes that remain."""

    def __init__(
        self, command: Sequence[str], plan: LaunchPlan, leftovers: Callable[[], Iterable[psutil.Process]]
    ) -> None:
        path = os.pathsep.join(p for p in plan.python_path if p)
        self._log = plan.files.launcher_log
        self._leftovers = leftovers
        self._process, lifeline = processes.start_guarded(
            plan,
            [*command, "-m", "pytest_distbench.worker", "rank", str(plan.files.plan)],
            variables={**plan.variables, **NO_REVERSE_DNS, "PYTHONPATH": path},
            log=self._log,
        )
        self._handle = os.pidfd_open(self._process.pid)
        self._open = contextlib.ExitStack()
        for descriptor in (self._handle, lifeline):
            self._open.callback(os.close, descriptor)

    def fileno(self) -> int:
        return self._handle

    def poll(self) -> Exit | None:
        code = self._process.poll()
        if code is None:
            return None
        self._open.close()
        log = tail(self._log, lines=200)
        trouble = "" if code == 0 else f"torchrun {processes.ending(code)}"
        return Exit(codes=exit_codes(log), trouble=trouble, died=code < 0)

    def pids(self) -> dict[int, int]:
        """Empty, as torchrun does not report them; ranks send them over the control connection."""
        return {}

    def drivers(self) -> list[int]:
        return processes.below_guardian(self._process.pid)

    def abandon(self) -> None:
        self._open.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        processes.kill(self._leftovers())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)


def rendezvous_handler() -> Callable[[object], object]:
    """Entry point in the group ``torchrun.handlers``, for ``torchrun --rdzv-backend=distbench-loopback``.

    torch loads it whenever it imports its rendezvous, so nothing is imported before it is used.
    """

    def make(parameters: object) -> object:
        del parameters
        from pytest_distbench.launch.starters.loopback import LoopbackRendezvous

        atexit.register(gc.freeze)  # else Python goes through torch's objects at the end: half a second of a launch
        return LoopbackRendezvous()

    return make


def exit_codes(log: str) -> dict[int, int]:
    return {int(rank): int(code) for rank, code in _EXIT_CODES.findall(log)}
