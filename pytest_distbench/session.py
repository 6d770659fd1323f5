"""The loop: request -> launch, launch, launch -> verdict, with more launches only while an answer is open.

Joins the three strangers launch, verdict and baselines. Knows nothing of pytest.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench import environment
from pytest_distbench.against import Reference, ReferenceSide, make_launcher, outside
from pytest_distbench.baselines import BaselineStore
from pytest_distbench.devices import alone_on_this_host, leased
from pytest_distbench.entry import make_entry, peak_memory_of, phases_of
from pytest_distbench.errors import BodyError, LauncherError
from pytest_distbench.judging import judge_launches
from pytest_distbench.launch.contract import Launcher
from pytest_distbench.launch.supervise import supervise
from pytest_distbench.launch.torchrun import TorchrunLauncher
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.paired import judge_paired, not_there
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
from pytest_distbench.updating import is_wanted, only_judges, why_not_storable
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
    _reference: ReferenceSide | None = None
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
        if self.settings.against is not None:
            self.comparisons = sum(1 for _ in cases)  # cases: what each compares is known when it has run
            return
        count = 0
        store = self.store
        read: dict[str, dict[str, BaselineEntry]] = {}
        for test, case_id in cases:
            if test not in read:
                read[test] = store.entries(test)
            for key, entry in read[test].items():
                if key == case_id + suffix or (key.startswith(f"{case_id}:") and key.endswith(suffix)):
                    count += sum(m.better in ("lower", "higher") for m in entry.metrics.values())
        self.comparisons = max(1, count)

    def prepare(self) -> None:
        """Let the launchers warm up in the background."""
        self.launcher.prepare(self._variables(2))
        if self.settings.against is not None:
            self.reference.launcher.prepare(self._variables(2))

    @property
    def launcher(self) -> Launcher:
        """The launcher the settings ask for."""
        if self._launcher is None:
            self._launcher = LAUNCHERS[self.settings.launcher](self)
        return self._launcher

    @property
    def reference(self) -> ReferenceSide:
        """The side that this tree is compared with; only where the settings name one."""
        if self._reference is None:
            self._reference = ReferenceSide(self.against, self.directory.path, LAUNCHERS["reference"](self))
        return self._reference

    @property
    def against(self) -> Reference:
        """What this tree is compared with; only where the settings name something."""
        assert self.settings.against is not None
        return self.settings.against

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules to import once for all ranks, whatever tree they measure."""
        against = self.settings.against
        return self.settings.preload if against is None else outside(self.settings.preload, against)

    def run(self, request: MeasureRequest) -> CaseResult:
        """Measure a case, judge it, and in an update store it.

        Raises:
            BackendUnavailable: this torch cannot run the backend.
            LauncherError: no ranks could be started.
            StoredFileError: the baseline cannot be read or written.
        """
        is_measured = request.judged and self.settings.attach is None
        is_paired = is_measured and self.settings.against is not None
        entry = None
        if is_measured and not is_paired:
            entry = self.store.entry(request.case.test, request.case.entry_key)
        gpus = [gpu.uuid for gpu in self.settings.gpus[: request.case.world_size]]
        with alone_on_this_host(on_wait=self.on_progress), leased(gpus, on_wait=self.on_progress):
            if self.settings.attach is not None:
                return self._result(request, [self._launch(request, 0)], [], None)
            if self.settings.update and request.judged:
                return self._update(request, entry)
            if is_paired:
                return self._compare_in_pairs(request)
            return self._compare(request, entry)

    def judge_given(self, request: MeasureRequest, launches: list[LaunchRecord]) -> CaseResult:
        """Judge, and in an update store, numbers that a test derived itself: one launch record per repetition.

        Raises:
            StoredFileError: the baseline cannot be read or written.
        """
        if self.settings.against is not None:
            reason = "derived by the test: only what bodies record is compared with another revision"
            return self._result(request, launches, not_there(request, launches[0], reason), None)
        entry = self.store.entry(request.case.test, request.case.entry_key)
        if self.settings.update and not only_judges(self.settings.update, entry):
            return self._store(request, launches, entry)
        verdicts = self._verdicts_of_all(request, launches, entry)
        return self._result(request, launches, verdicts, entry)

    def write_pending(self) -> None:
        """Store what the test that just passed measured in an update.

        Raises:
            StoredFileError: a baseline cannot be written; it is as it was before.
        """
        pending, self.pending = self.pending, []
        for test, key, entry in pending:
            self.store.write(test, key, entry)

    def close(self) -> None:
        """End the launchers and remove the worktree; the run directory stays if a launch failed."""
        reference, self._reference = self._reference, None
        launcher, self._launcher = self._launcher, None
        try:
            if reference is not None:
                reference.close()
        finally:
            if launcher is not None:
                launcher.close()
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

    def _compare_in_pairs(self, request: MeasureRequest) -> CaseResult:
        """Launch this tree and the reference side by side until every answer is clear."""
        if not self.reference.has(request.body):
            return self._measure_alone(request)
        launches: list[LaunchRecord] = []
        references: list[LaunchRecord] = []
        verdicts: list[Verdict] = []
        open_metrics: list[str] = []
        for look in self.against.looks:
            while len(launches) < look:
                reference, current = self._launch_pair(request, len(launches), only=open_metrics)
                if reference is not None and reference.outcome == "failed" and _has_no_body(reference):
                    self._failed_launches -= 1  # nothing that its logs could explain
                    shutil.rmtree(reference.logs, ignore_errors=True)
                    return self._measure_alone(request)
                for record in (current, reference):
                    if record is not None and record.outcome != "passed":
                        return self._result(request, [record], [], None)
                assert reference is not None
                assert current is not None
                references.append(reference)
                launches.append(current)
            verdicts, open_metrics = judge_paired(
                request,
                references,
                launches,
                tolerance=self.against.tolerance,
                looks=self.against.looks,
                cases=self.comparisons,
            )
            if not open_metrics:
                break
        return self._result(request, launches, verdicts, None, references=references)

    def _measure_alone(self, request: MeasureRequest) -> CaseResult:
        """A test that the reference does not have is run once: it has to work, and shows its numbers."""
        launch = self._launch(request, 0)
        reason = f"the test does not exist in {self.against}"
        return self._result(request, [launch], not_there(request, launch, reason), None)

    def _update(self, request: MeasureRequest, entry: BaselineEntry | None) -> CaseResult:
        if only_judges(self.settings.update, entry):
            return self._compare(request, entry)
        launches: list[LaunchRecord] = []
        while len(launches) < max(request.launches, self.settings.update_launches):
            launches.append(self._launch(request, len(launches)))
            if launches[-1].outcome != "passed":
                return self._result(request, launches, [], entry)
        return self._store(request, launches, entry)

    def _store(self, request: MeasureRequest, launches: list[LaunchRecord], entry: BaselineEntry | None) -> CaseResult:
        """Prepare the entry if the update mode wants it; an entry that did not move is not rewritten."""
        verdicts = self._verdicts_of_all(request, launches, entry)
        result = self._result(request, launches, verdicts, entry)
        if why_not_storable(launches):
            return replaced(result, update="refused")
        if not is_wanted(self.settings.update, verdicts, is_new=entry is None):
            return replaced(result, update="kept")
        made = make_entry(request.case, launches, launches[0].software, before=entry)
        self.pending.append((request.case.test, request.case.entry_key, made))
        previous = {v.metric: v.baseline for v in verdicts if v.better != "info"}
        return replaced(result, update="new" if entry is None else "changed", previous=previous)

    def _verdicts_of_all(
        self, request: MeasureRequest, launches: Sequence[LaunchRecord], entry: BaselineEntry | None
    ) -> list[Verdict]:
        """Judge where no launch can be added: no answer stays open."""
        settled = dataclasses.replace(request, max_launches=len(launches))
        return [j.verdict for j in self._judge(settled, launches, entry)]

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
        plan = self._plan(directory, request, index, only=only)
        self.on_progress(f"launch {index + 1}")
        record = supervise(self.launcher, plan, on_progress=self.on_progress, on_output=self.on_output)
        self._tidy(record)
        return record

    def _launch_pair(
        self, request: MeasureRequest, index: int, *, only: Sequence[str]
    ) -> tuple[LaunchRecord | None, LaunchRecord | None]:
        """The reference's record and this tree's; None for the one that was ended because the other failed."""
        self.on_progress(f"pair {index + 1}")
        try:
            ours, theirs = (self._plan(self.directory.next_launch(), request, index, only=only) for _ in range(2))
            records = self.reference.launch(
                self.launcher, ours, theirs, on_progress=self.on_progress, on_output=self.on_output
            )
        except OSError as error:
            raise _no_room(error) from error
        for record, plan in zip(records, (theirs, ours), strict=True):
            if record is None:
                shutil.rmtree(plan.directory, ignore_errors=True)
            else:
                self._tidy(record)
        return records

    def _plan(self, directory: Path, request: MeasureRequest, index: int, *, only: Sequence[str]) -> LaunchPlan:
        variables = self._variables(request.case.world_size)
        return LaunchPlan(
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

    def _tidy(self, record: LaunchRecord) -> None:
        """The folder of a launch that failed is kept for reading."""
        if record.outcome == "failed":
            self._failed_launches += 1
        else:
            shutil.rmtree(record.logs, ignore_errors=True)

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
        *,
        references: Sequence[LaunchRecord] = (),
    ) -> CaseResult:
        is_paired = request.judged and self.settings.against is not None
        return CaseResult(
            nodeid=request.nodeid,
            case=request.case,
            environment=self.environment(launches[0].software),
            launches=launches,
            verdicts=verdicts,
            baseline_path="" if is_paired or not request.judged else str(self._place(request)),
            baseline_software=entry.software if entry else references[0].software if references else {},
            xfail_perf=request.xfail_perf or (entry.xfail_perf if entry else ""),
            baseline_peak_memory_bytes=entry.peak_memory_bytes if entry else peak_memory_of(references),
            baseline_phases=entry.phases if entry else phases_of(references),
            against=str(self.settings.against) if is_paired else "",
            reference_launches=list(references),
        )

    def _place(self, request: MeasureRequest) -> Path:
        return self.store.path(request.case.test, request.case.entry_key)


LAUNCHERS: dict[str, Callable[[Session], Launcher]] = {
    "warm": lambda session: WarmLauncher(session.directory.path, session.cookie, session.preload),
    "torchrun": lambda session: TorchrunLauncher(session.cookie),
    "reference": lambda session: make_launcher(
        session.against, session.directory.path, uuid.uuid4().hex, session.preload
    ),
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


def _has_no_body(launch: LaunchRecord) -> bool:
    """Whether ranks found no body of that name in the file."""
    return any(fate.error is not None and fate.error.kind == BodyError.__name__ for fate in launch.fates)
