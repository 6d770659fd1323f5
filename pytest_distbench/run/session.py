"""The session of a pytest run: where cases get their launches, comparisons and confirmation from.

It joins the rooms launch, judging and store, and does not import pytest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_distbench.machine import hardware
from pytest_distbench.machine.locks import alone_on_this_host, lease, with_others_on_this_host
from pytest_distbench.records.case import RANKS, BaselineName, Case, Conditions
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.run.against import Variant
from pytest_distbench.run.comparisons import Nothing, Paired, Pending, Stored
from pytest_distbench.run.confirm import Confirmation, Confirmer, Rerun, Suspect, for_places, in_time
from pytest_distbench.run.kinds import kind_of
from pytest_distbench.run.launching import Launching
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.sources import (
    CaseComparison,
    Crossed,
    Launches,
    Made,
    Pacer,
    PairedLaunches,
    Source,
    alternate,
)
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.store.entries import with_its_work
from pytest_distbench.store.files import read_each

_SHARES_GPU = "ranks share a GPU: their numbers measure the time-slicing, not the hardware"


@dataclass
class Session:
    """One pytest run: its settings, its launches, and its baselines.

    Attributes:
        comparisons: number of noisy comparisons that the run may make, over which the error rate is shared.
        pending: baselines of an update that are written when their test has passed.
    """

    launching: Launching
    confirmer: Confirmer | None = None
    comparisons: int = 1
    pending: list[Pending] = field(default_factory=list)

    @functools.cached_property
    def pacer(self) -> Pacer:
        return Pacer()

    @property
    def settings(self) -> Settings:
        return self.launching.settings

    @functools.cached_property
    def hardware(self) -> Environment:
        if self._hosts is not None:
            return self._hosts[0]
        return hardware.describe(
            platform_name=self.settings.platform,
            gpus=self.settings.gpus,
            shares_gpu=self.settings.shares_gpu,
            shares_host=self.settings.shares_host,
            software={"python": sys.version.split()[0], "torch": hardware.installed_version("torch")},
            variables=os.environ,
        )

    @functools.cached_property
    def _hosts(self) -> tuple[Environment, bool] | None:
        """The hosts of the launcher and whether they share a folder, or None if ranks run on this host."""
        describe, settings = self.launching.launcher_kind.describe, self.settings
        if describe is None:
            return None
        self.launching.on_start()
        return describe(
            ranks=settings.largest, engine=settings.engine, gpu=settings.gpu, platform=settings.platform or ""
        )

    @functools.cached_property
    def store(self) -> Baselines:
        return Baselines(self.settings.baselines, self.hardware.platform)

    def environment(self, software: dict[str, str]) -> Environment:
        return replace(
            self.hardware,
            software=software or self.hardware.software,
            variables=hardware.variables_to_record({**os.environ, **self.settings.gpus.variables}),
        )

    def count_comparisons(self, cases: Iterable[tuple[str, str, str]]) -> None:
        if self.settings.is_paired:
            self.comparisons = sum(1 for _ in cases)  # the metrics of each are known when it has run
            return
        of_test: dict[str, set[tuple[str, str]]] = {}
        for test, case_id, backend in cases:
            of_test.setdefault(test, set()).add((case_id, backend))

        def count_of(test: str) -> int:
            wanted, count = of_test[test], 0
            for key, baseline in self.store.of_test(test, test_ids={case_id for case_id, _ in wanted}).items():
                ids = {case_id for case_id, backend in wanted if backend == baseline.conditions.backend}
                if self._may_measure(baseline.conditions) and baseline.is_of(ids, key):
                    count += sum(metric[0].is_noisy for metric in baseline.metrics.values())
            return count

        self.comparisons = max(1, sum(read_each(count_of, of_test)))

    def check_device(self) -> None:
        """Check that ranks can compute on a GPU, if the run is on GPUs of this host."""
        if self.settings.gpu and self.launching.launcher_kind.hosts == "one" and self.settings.attach is None:
            with self.alone(1, takes_host=self.launching.launcher_kind.hosts == "one"):
                self.launching.check_device()

    def source(self, request: LaunchRequest) -> Source:
        """The launches of a case, none made yet; in pairs if the candidate is compared with another revision."""
        kind = kind_of(request.work)
        is_compared = self.settings.is_paired and self.settings.attach is None
        variant = self.launching.compared_with
        if is_compared and variant is not None and not kind.why_alone:
            source: Source = PairedLaunches(self.launching, request, variant)
        else:
            source = self.launches_of(request)
        if is_compared and kind.why_alone:
            source.alone, source.most = kind.why_alone, 1
        if self.settings.launches[1] is None:
            source.open_s, source.most_stored = kind.open_s, kind.most_stored
            if not is_compared:
                source.most_open = kind.most_open
        return source

    def interleaved(
        self, request: LaunchRequest, variant: Variant, known: Sequence[LaunchRecord], left_s: float
    ) -> Source:
        """Launches of a suspicious case, each interleaved with two of its baseline commit.

        They are alone if the candidate is the baseline commit.
        """
        if variant.is_itself:
            return self.launches_of(request)
        bounded = in_time(request, [launch.wall_s for launch in known], left_s=left_s)
        return PairedLaunches(self.launching, bounded, variant, has_control=True)

    def source_for(self, request: CaseRequest, rerun: Rerun | None) -> Source:
        """The launches of a case; in a test that is run again those it had, or interleaved ones that confirm it."""
        launched, key = request.launched, request.case.key
        assert launched is not None
        if rerun is None or key not in rerun.sources:
            return self.source(launched)
        known, variant = rerun.sources[key], rerun.variants.get(key)
        return known if variant is None else self.interleaved(launched, variant, known.launches, rerun.budget.left_s)

    def launches_of(self, request: LaunchRequest) -> Source:
        """The launches of a case, alone, with the reason why they cannot be interleaved, if there is one."""
        hosting, kind = self.launching.hosting(request.work), kind_of(request.work)
        source = Launches(self.launching, request, self.pacer if hosting.is_spaced else Pacer(0.0))
        if hosting.hosts == "none":
            source.why_not_interleaved = "its ranks are simulated"
        elif kind.hosting is not None:
            source.why_not_interleaved = kind.why_alone
        elif not self.launching.launcher_kind.holds_two:
            source.why_not_interleaved = f"the {self.settings.launcher} launcher cannot keep two groups open at once"
        elif not self.launching.launcher_kind.may_confirm:
            lacks = "does not state that two groups can run on the same hosts at once"
            source.why_not_interleaved = f"the {self.settings.launcher} launcher {lacks}"
        elif hosting.hosts == "many" and not (self._hosts is not None and self._hosts[1]):
            seen = f"{tempfile.gettempdir()} (TMPDIR), where the other revision is checked out"
            source.why_not_interleaved = f"not all hosts confirmed that they see {seen}"
        else:
            source.why_not_interleaved = kind.why_alone
        return source

    def comparison(self, request: CaseRequest) -> CaseComparison:
        if not self.settings.judges:
            return Nothing(dataclasses.replace(request, launches=1))
        if self.settings.shares_gpu:
            return Nothing(request, _SHARES_GPU)
        if self.settings.is_paired:
            return Paired(
                request,
                name=str(self.launching.compared_with),
                tolerance=self.settings.against_tolerance,
                numbers=self.settings.pairs,
                cases=self.comparisons,
                other_python=bool(self.settings.against_python),
                is_judge=self.settings.judge == "base",
            )
        return self.stored(request)

    def stored(self, request: CaseRequest) -> Stored:
        baseline = self.store.read(request.case.test, request.case.key)
        return Stored(
            request,
            store=self.store,
            baseline=None if baseline is None else with_its_work(baseline, request.case),
            comparisons=self.comparisons,
            update=self.settings.update,
            update_launches=self.settings.update_launches,
            pending=self.pending,
            confirmer=self.confirmer,
        )

    def _may_measure(self, conditions: Conditions) -> bool:
        return conditions.kind != RANKS or conditions.launcher == self.settings.launcher

    def lost_cases(self, test: str, case_id: str, backend: str, *, used: Collection[Case]) -> list[BaselineName]:
        """The baselines of a test that none of its calls has measured or judged.

        [] without comparison with baselines, in an update, and under the backend ``fake``. Baselines of other
        surroundings are not lost, nor those of an engine of elastic jobs if the test used another engine.
        """
        settings = self.settings
        is_compared = not settings.is_paired and settings.judges and not settings.shares_gpu
        if not is_compared or settings.update is not None or settings.prune or settings.fake_rank is not None:
            return []
        keys = {case.key for case in used}
        had_engine = any(case.conditions.engine for case in used)
        arounds = [case.conditions.around for case in used]
        lost = [
            key
            for key, baseline in self.store.of_test(test, test_ids=[case_id]).items()
            if key not in keys and baseline.holds_numbers and baseline.conditions.backend == backend
            if self._may_measure(baseline.conditions) and not (baseline.conditions.engine and had_engine)
            if baseline.conditions.around in arounds or not (arounds or baseline.conditions.around)
        ]
        return [BaselineName(platform=self.store.platform, test=test, key=key) for key in sorted(lost)]

    def decide(self, request: CaseRequest, source: Source, comparison: CaseComparison) -> CaseResult:
        findings = None if comparison.judges_timings else self._decide_without_timings(request, source, comparison)
        if findings is None:
            with self.alone(request.case.world_size, takes_host=source.takes_host):
                findings = comparison.decide(source)
        result = self.result(request, source, comparison)
        verdicts = [] if source.failed else [replace(finding, is_open=False) for finding in findings]
        return comparison.conclude(replace(result, verdicts=verdicts))

    def _decide_without_timings(
        self, request: CaseRequest, source: Source, comparison: CaseComparison
    ) -> list[Finding] | None:
        """The findings without the lock of the host, or None if another run measures here and a launch has timings."""
        with self.alone(request.case.world_size, takes_host=source.takes_host, waits=False) as is_alone:
            if is_alone:
                return comparison.decide(source)
            if is_new := not source.launches:
                source.add()
            if source.failed:
                return []
            if not any(map(comparison.judges_timings_of, source.launches)):
                return comparison.decide(source)
            if is_new:
                source.forget()
            return None

    def measure(self, sources: Sequence[Source], wanted: int, world_size: int) -> None:
        with self.alone(world_size, takes_host=any(source.takes_host for source in sources)):
            alternate(sources, wanted)

    def result(self, request: CaseRequest, source: Source, comparison: CaseComparison) -> CaseResult:
        return CaseResult(
            nodeid=request.nodeid,
            line=request.line,
            case=request.case,
            environment=self.environment(source.launches[0].software),
            launches=list(source.launches),
            verdicts=[],
            reference=comparison.record(source),
            xfail_perf=request.xfail_perf,
            advisory=request.advisory,
            is_advisory_of_timings=request.is_advisory_of_timings,
        )

    def confirm(self, request: CaseRequest, source: Source, suspect: Suspect, rerun: Rerun) -> CaseResult:
        """Confirm a suspicious case by interleaved A/B; if that decides nothing, the stored numbers do.

        A launch of the candidate that does not pass fails the case.
        """
        assert self.confirmer is not None
        launched = None if request.case.key in rerun.left else request.launched
        exchanged = dataclasses.replace(suspect.variant, is_exchanged=True)
        old = self.confirmer.of_its_time(suspect.variant)
        alone = self.alone(request.case.world_size, takes_host=source.takes_host)
        with rerun.budget.setting_aside(for_places(suspect.launches)[1]), rerun.budget.waiting(alone):
            turn = self.launching.turn
            self.launching.turn = lambda: rerun.budget.waiting(turn())  # waiting for other runs is free
            confirmation, left_s = Confirmation(request, suspect, rerun), rerun.budget.left_s
            second = self.interleaved(launched, exchanged, suspect.launches, left_s) if launched else None
            result = confirmation.result(
                Crossed(source, second, close=lambda: self.launching.release(exchanged)),
                here=self.confirmer.here,
                of_its_time=self.interleaved(launched, old, suspect.launches, left_s) if launched and old else None,
            )
        self.launching.release(exchanged)
        if source.failed:
            return self.result(request, source, Nothing(request))
        return result or self._decide_by_stored(request, suspect, confirmation.why_not)

    def _decide_by_stored(self, request: CaseRequest, suspect: Suspect, why: str) -> CaseResult:
        source = self.source(request.launched) if request.launched is not None else Made(suspect.launches)
        source.launches[:] = suspect.launches
        result = self.decide(request, source, dataclasses.replace(self.stored(request), confirmer=None))
        return replace(result, unconfirmed=f"{why}; so the comparison with the stored baseline counts")

    def write_pending(self) -> None:
        pending, self.pending[:] = list(self.pending), []
        for case, baseline in pending:
            self.store.write(case.test, case.key, baseline)

    @contextlib.contextmanager
    def alone(self, world_size: int, *, takes_host: bool, waits: bool = True) -> Iterator[bool]:
        """Lock this host, unless it is shared, and the first ``world_size`` GPUs.

        Yields whether no other run measures. Without ``waits`` another run may: then launches of the two take turns,
        for a limited time each.
        """
        gpus, on_wait = [gpu.uuid for gpu in self.settings.gpus.visible[:world_size]], self.launching.on_wait
        is_alone = True
        with contextlib.ExitStack() as held:
            if takes_host and self.settings.fake_rank is None:
                of_host = with_others_on_this_host if self.settings.shares_host else alone_on_this_host
                is_alone = held.enter_context(of_host(on_wait=on_wait, waits=waits))
                held.enter_context(lease(gpus, on_wait=on_wait))
                held.enter_context(self.launching.one_at_a_time(is_alone=is_alone))
            yield is_alone
