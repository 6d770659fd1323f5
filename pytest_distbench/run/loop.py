"""The loop: request -> launch, launch, launch -> verdict, with more launches only while an answer is open.

Joins the three strangers launch, verdict and baselines. Knows nothing of pytest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench.errors import BodyError
from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.entry import make_entry, peak_memory_of, phases_of
from pytest_distbench.judging.metric import Judgement
from pytest_distbench.judging.pairs import judge_paired, not_there
from pytest_distbench.judging.update_policy import is_wanted, only_judges, why_not_storable
from pytest_distbench.machine import hardware
from pytest_distbench.machine.locks import alone_on_this_host, leased
from pytest_distbench.plugin.settings import Settings
from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replaced
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.run import pacing
from pytest_distbench.run.launching import Launching
from pytest_distbench.run.request import MeasureRequest
from pytest_distbench.store.baselines import BaselineStore


@dataclass
class Session:
    """One pytest run: what was asked for, its launches, and the store.

    Attributes:
        launching: starts the ranks.
        comparisons: noisy comparisons this run may make; the error rate is shared over them.
        pending: entries of an update (test, key, entry) that wait for their test to pass.
        began_at: when the last launch began; CLOCK_MONOTONIC seconds.
    """

    launching: Launching
    comparisons: int = 1
    pending: list[tuple[str, str, BaselineEntry]] = field(default_factory=list)
    began_at: float = 0.0

    @property
    def settings(self) -> Settings:
        """What the user asked for."""
        return self.launching.settings

    @property
    def platform(self) -> str:
        """The hardware class whose baselines are used."""
        return self.environment({}).platform

    @property
    def store(self) -> BaselineStore:
        """Baselines of this platform."""
        return BaselineStore(self.settings.baselines, self.platform)

    def environment(self, software: dict[str, str]) -> Environment:
        """Hardware and software, with the versions the ranks reported."""
        return hardware.describe(
            platform_name=self.settings.platform,
            gpu_name=self.settings.gpus[0].name if self.settings.gpus else None,
            shares_gpu=self.settings.shares_gpu,
            software=software or {"python": sys.version.split()[0], "torch": hardware.installed_version("torch")},
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
        of_test: dict[str, set[str]] = {}
        for test, case_id in cases:
            of_test.setdefault(test, set()).add(case_id)

        def is_one_of(case_ids: set[str], key: str) -> bool:
            case = key.removesuffix(suffix)
            return case != key and any(case == case_id or case.startswith(f"{case_id}:") for case_id in case_ids)

        count = 0
        store = self.store
        for test, case_ids in of_test.items():
            for entry in store.entries(test, wanted=functools.partial(is_one_of, case_ids)).values():
                count += sum(m.is_noisy for m in entry.metrics.values())
        self.comparisons = max(1, count)

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
        with contextlib.ExitStack() as held:
            if self.launching.kind.local_lock:
                held.enter_context(alone_on_this_host(on_wait=self.launching.on_progress))
                held.enter_context(leased(gpus, on_wait=self.launching.on_progress))
            if self.settings.attach is not None:
                return self._result(request, [self.launching.launch(request, 0)], [], None)
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

    def _compare(self, request: MeasureRequest, entry: BaselineEntry | None) -> CaseResult:
        launches: list[LaunchRecord] = []
        open_metrics: list[str] = []
        while True:
            self._launch_again(request, launches, only=open_metrics)
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
        if not self.launching.reference.has(request.body):
            return self._measure_alone(request)
        launches: list[LaunchRecord] = []
        references: list[LaunchRecord] = []
        verdicts: list[Verdict] = []
        open_metrics: list[str] = []
        for look in self.launching.against.looks:
            while len(launches) < look:
                reference, current = self.launching.launch_pair(request, len(launches), only=open_metrics)
                if reference is not None and reference.outcome == "failed" and _has_no_body(reference):
                    self.launching.forget(reference)
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
                tolerance=self.launching.against.tolerance,
                looks=self.launching.against.looks,
                cases=self.comparisons,
            )
            if not open_metrics:
                break
        return self._result(request, launches, verdicts, None, references=references)

    def _launch_again(self, request: MeasureRequest, launches: list[LaunchRecord], *, only: Sequence[str] = ()) -> None:
        """Add a launch of this tree to those of the case, not in one breath with the last (see ``pacing``)."""
        if self.launching.kind.is_spaced:
            pacing.wait_for_next(launches[-1] if launches else None, self.began_at)
        self.began_at = time.monotonic()
        launches.append(self.launching.launch(request, len(launches), only=only))

    def _measure_alone(self, request: MeasureRequest) -> CaseResult:
        """A test that the reference does not have is run once: it has to work, and shows its numbers."""
        launch = self.launching.launch(request, 0)
        reason = f"the test does not exist in {self.launching.against}"
        return self._result(request, [launch], not_there(request, launch, reason), None)

    def _update(self, request: MeasureRequest, entry: BaselineEntry | None) -> CaseResult:
        if only_judges(self.settings.update, entry):
            return self._compare(request, entry)
        launches: list[LaunchRecord] = []
        while len(launches) < max(request.launches, self.settings.update_launches):
            self._launch_again(request, launches)
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
        previous = {v.metric: v.baseline for v in verdicts if v.is_judged}
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


def _has_no_body(launch: LaunchRecord) -> bool:
    """Whether ranks found no body of that name in the file."""
    return any(fate.error is not None and fate.error.kind == BodyError.__name__ for fate in launch.fates)
