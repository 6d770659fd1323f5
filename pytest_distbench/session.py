"""The loop: request -> launch, launch, launch -> verdict, with more launches only while an answer is open.

Joins the three strangers launch, verdict and baselines. Knows nothing of pytest.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench import environment
from pytest_distbench.baselines import BaselineStore, make_entry
from pytest_distbench.devices import alone_on_this_host, leased
from pytest_distbench.errors import LauncherError
from pytest_distbench.judging import judge_launches
from pytest_distbench.launch.contract import Launcher
from pytest_distbench.launch.supervise import supervise
from pytest_distbench.launch.torchrun import TorchrunLauncher
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.records import (
    BaselineEntry,
    CaseResult,
    Environment,
    LaunchPlan,
    LaunchRecord,
    Verdict,
    replaced,
)
from pytest_distbench.request import MeasureRequest
from pytest_distbench.run_directory import RunDirectory
from pytest_distbench.settings import Settings
from pytest_distbench.verdict import Judgement

_ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
"""Set in ranks unless the user has: sockets of a group on one host are not for others to see, and one reverse look-up
of 127.0.0.1 (where /etc/hosts lacks it) costs a second, not ten."""

ATTACHED_TIMEOUT_S = 7 * 86400.0
"""For a rank in a debugger: nobody waits for it but its user."""

_TORCHRUN_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_TORCHRUN_PREFIXES = ("TORCHELASTIC_", "PET_")


@dataclass
class Session:
    """One pytest run: its settings, its launcher, its private directory, and the store.

    Attributes:
        settings: what the user asked for.
        comparisons: noisy comparisons this run may make; the error rate is shared over them.
        on_progress: shows one line while ranks run.
        reports_progress: whether ranks should say what they are doing.
        on_output: gets (rank, line) of what ranks print, while they run; None leaves it in their logs.
        post_mortem: an attached rank starts pdb where its body raised.
        cookie: marks every process this session starts, in its environment.
        pending: entries of an update (test, key, entry) that wait for their test to pass.
    """

    settings: Settings
    comparisons: int = 1
    on_progress: Callable[[str], None] = lambda text: None
    reports_progress: bool = False
    on_output: Callable[[int, str], None] | None = None
    post_mortem: bool = False
    cookie: str = field(default_factory=lambda: uuid.uuid4().hex)
    pending: list[tuple[str, str, BaselineEntry]] = field(default_factory=list)
    _directory: RunDirectory | None = None
    _launcher: Launcher | None = None
    _failed_launches: int = 0

    @property
    def platform(self) -> str:
        """The hardware class whose baselines are used."""
        return self.environment({}).platform

    @property
    def store(self) -> BaselineStore:
        """Baselines of this platform."""
        return BaselineStore(self.settings.baselines, self.platform)

    @property
    def directory(self) -> RunDirectory:
        """Private directory of this session, made at its first use.

        Raises:
            LauncherError: there is no place for it.
        """
        if self._directory is None:
            try:
                self._directory = RunDirectory()
            except OSError as error:
                raise _no_room(error) from error
        return self._directory

    def environment(self, software: dict[str, str]) -> Environment:
        """Hardware and software, with the versions the ranks reported."""
        return environment.describe(
            platform_name=self.settings.platform,
            gpu_name=self.settings.gpus[0].name if self.settings.gpus else None,
            shares_gpu=self.settings.shares_gpu,
            software=software or {"python": sys.version.split()[0], "torch": environment.installed_version("torch")},
            variables=os.environ,
        )

    def count_comparisons(self, cases: Iterable[tuple[str, str]]) -> None:
        """Count the noisy metrics stored for these (test, case id) pairs.

        Raises:
            StoredFileError: a baseline file of one of these tests cannot be read.
        """
        suffix = f".{self.settings.backend}.{self.settings.launcher}"
        count = 0
        store = self.store
        read: dict[str, dict[str, BaselineEntry]] = {}
        for test, case_id in cases:
            if test not in read:
                read[test] = store.read(test)
            for key, entry in read[test].items():
                if key == case_id + suffix or (key.startswith(f"{case_id}:") and key.endswith(suffix)):
                    count += sum(m.better in ("lower", "higher") for m in entry.metrics.values())
        self.comparisons = max(1, count)

    def prepare(self) -> None:
        """Let the launcher warm up in the background."""
        self.launcher.prepare(self._variables(2))

    @property
    def launcher(self) -> Launcher:
        """The launcher the settings ask for."""
        if self._launcher is None:
            self._launcher = LAUNCHERS[self.settings.launcher](self)
        return self._launcher

    def run(self, request: MeasureRequest) -> CaseResult:
        """Measure a case, judge it, and in an update store it.

        Raises:
            BackendUnavailable: this torch cannot run the backend.
            LauncherError: no ranks could be started.
            StoredFileError: the baseline cannot be read or written.
        """
        is_measured = request.judged and self.settings.attach is None
        entry = self.store.read(request.case.test).get(request.case.entry_key) if is_measured else None
        gpus = [gpu.uuid for gpu in self.settings.gpus[: request.case.world_size]]
        with alone_on_this_host(on_wait=self.on_progress), leased(gpus, on_wait=self.on_progress):
            if self.settings.attach is not None:
                return self._result(request, [self._launch(request, 0)], [], None)
            if self.settings.update and request.judged:
                return self._update(request, entry)
            return self._compare(request, entry)

    def judge_given(self, request: MeasureRequest, launches: list[LaunchRecord]) -> CaseResult:
        """Judge, and in an update store, numbers that a test derived itself: one launch record per repetition.

        Raises:
            StoredFileError: the baseline cannot be read or written.
        """
        entry = self.store.read(request.case.test).get(request.case.entry_key)
        if self.settings.update:
            return self._store(request, launches, entry)
        verdicts = [j.verdict for j in self._judge(request, launches, entry)]
        return self._result(request, launches, verdicts, entry)

    def write_pending(self) -> None:
        """Store what the test that just passed measured in an update.

        Raises:
            StoredFileError: a baseline cannot be written; it is as it was before.
        """
        pending, self.pending = self.pending, []
        for test, key, entry in pending:
            self.store.write(test, {key: entry})

    def close(self) -> None:
        """End the launcher; the run directory stays if a launch failed."""
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        if self._directory is not None:
            self._directory.close(keep=self._failed_launches > 0)
            self._directory = None

    def _compare(self, request: MeasureRequest, entry: BaselineEntry | None) -> CaseResult:
        launches: list[LaunchRecord] = []
        open_metrics: list[str] = []
        while True:
            launches.append(self._launch(request, len(launches), only=open_metrics))
            if launches[-1].outcome != "passed":
                return self._result(request, launches, [], entry)
            if len(launches) < request.launches:
                continue
            judgements = self._judge(request, launches, entry) if request.judged else []
            open_metrics = [j.verdict.metric for j in judgements if j.is_open]
            if not open_metrics or len(launches) >= request.max_launches:
                return self._result(request, launches, [j.verdict for j in judgements], entry)

    def _update(self, request: MeasureRequest, entry: BaselineEntry | None) -> CaseResult:
        mode = self.settings.update
        if (mode == "new" and entry is not None) or (mode == "failed" and entry is None):
            return self._compare(request, entry)
        launches: list[LaunchRecord] = []
        while len(launches) < self.settings.update_launches:
            launches.append(self._launch(request, len(launches)))
            if launches[-1].outcome != "passed":
                return self._result(request, launches, [], entry)
        return self._store(request, launches, entry)

    def _store(self, request: MeasureRequest, launches: list[LaunchRecord], entry: BaselineEntry | None) -> CaseResult:
        """Prepare the entry if the update mode wants it; an entry that did not move is not rewritten."""
        verdicts = [j.verdict for j in self._judge(request, launches, entry)]
        result = self._result(request, launches, verdicts, entry)
        if not _is_storable(launches):
            return result
        if not _is_wanted(self.settings.update, verdicts, is_new=entry is None):
            return replaced(result, update="kept")
        made = make_entry(request.case, launches, launches[0].software, before=entry)
        self.pending.append((request.case.test, request.case.entry_key, made))
        previous = {v.metric: v.baseline for v in verdicts if v.better != "info"}
        return replaced(result, update="new" if entry is None else "changed", previous=previous)

    def _judge(
        self, request: MeasureRequest, launches: Sequence[LaunchRecord], entry: BaselineEntry | None
    ) -> list[Judgement]:
        judgements = judge_launches(request, launches, entry, comparisons=self.comparisons)
        if not self.settings.shares_gpu:
            return judgements
        reason = "ranks share a GPU: their numbers measure the time-slicing, not the hardware"
        return [
            Judgement(replaced(j.verdict, kind="incomparable", limit=None, reason=reason), is_open=False)
            for j in judgements
        ]

    def _launch(self, request: MeasureRequest, index: int, *, only: Sequence[str] = ()) -> LaunchRecord:
        try:
            return self._launch_in(self.directory.next_launch(), request, index, only=only)
        except OSError as error:
            raise _no_room(error) from error

    def _launch_in(self, directory: Path, request: MeasureRequest, index: int, *, only: Sequence[str]) -> LaunchRecord:
        variables = self._variables(request.case.world_size)
        plan = LaunchPlan(
            index=index,
            world_size=request.case.world_size,
            backend=request.case.backend,
            device=request.case.device,
            body=request.body,
            params=request.params,
            seeds=list(request.seeds),
            timeout_s=request.timeout_s if self.settings.attach is None else ATTACHED_TIMEOUT_S,
            directory=str(directory),
            data_dir=str(self.directory.data),
            working_dir=str(Path.cwd()),
            python_path=[p or str(Path.cwd()) for p in sys.path],
            variables=variables,
            devices=self._devices(request.case.world_size),
            shares_gpu=self.settings.shares_gpu,
            attached=self.settings.attach,
            post_mortem=self.post_mortem,
            only=list(only),
            reports_progress=self.reports_progress,
            set_threads=_threads(variables) if self.settings.launcher == "warm" else None,
        )
        self.on_progress(f"launch {index + 1}")
        record = supervise(self.launcher, plan, on_progress=self.on_progress, on_output=self.on_output)
        if record.outcome == "failed":
            self._failed_launches += 1
        else:
            shutil.rmtree(directory, ignore_errors=True)
        return record

    def _devices(self, world_size: int) -> list[int]:
        """CUDA device of each rank: one of its own, or shared evenly."""
        count = len(self.settings.gpus)
        return [rank % count for rank in range(world_size)] if count else []

    def _variables(self, world_size: int) -> dict[str, str]:
        """Pytest's environment as it is, without an outer torchrun's, plus what torchrun would add and _ONE_HOST."""
        variables = {
            k: v for k, v in os.environ.items() if k not in _TORCHRUN_VARIABLES and not k.startswith(_TORCHRUN_PREFIXES)
        }
        if world_size > 1:
            variables.setdefault("OMP_NUM_THREADS", "1")
        for name, value in _ONE_HOST.items():
            variables.setdefault(name, value)
        return variables

    def _result(
        self,
        request: MeasureRequest,
        launches: list[LaunchRecord],
        verdicts: list[Verdict],
        entry: BaselineEntry | None,
    ) -> CaseResult:
        return CaseResult(
            nodeid=request.nodeid,
            case=request.case,
            environment=self.environment(launches[0].software),
            launches=launches,
            verdicts=verdicts,
            baseline_path=str(self.store.path(request.case.test)) if request.judged else "",
            baseline_software=entry.software if entry else {},
        )


LAUNCHERS: dict[str, Callable[[Session], Launcher]] = {
    "warm": lambda session: WarmLauncher(session.directory.path, session.cookie, session.settings.preload),
    "torchrun": lambda session: TorchrunLauncher(session.cookie),
}
"""How to make the launcher of each name."""


def _threads(variables: Mapping[str, str]) -> int:
    """Intra-op threads, as OpenMP reads its variable: a list is one number per nesting level."""
    first = variables.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else environment.cores()


def _no_room(error: OSError) -> LauncherError:
    where = f": {error.filename}" if error.filename else ""
    return LauncherError(
        f"cannot start ranks: {error.strerror or error}{where}. The run directory is below TMPDIR, which must be "
        "writable and have free space"
    )


def _is_storable(launches: Sequence[LaunchRecord]) -> bool:
    """An update needs at least one judged metric, and a value for each in every launch."""
    judged = [m for launch in launches for m in launch.measurements if m.better != "info"]
    return bool(judged) and all(m.value is not None for m in judged)


def _is_wanted(mode: str | None, verdicts: Sequence[Verdict], *, is_new: bool) -> bool:
    """Whether an update in this mode rewrites an entry with these verdicts."""
    kinds = {v.kind for v in verdicts if v.better != "info"}
    match mode:
        case "all":
            return True
        case "new":
            return is_new
        case "failed":
            return "regressed" in kinds
        case _:
            return is_new or bool(kinds & {"regressed", "improved", "incomparable", "missing"})
