"""Launches that are not judged: with an injected slowdown, or with torch's profiler. None is stored.

The positive control compares launches with the delay with the stored baseline, as those of slower code. A suspicious
comparison is confirmed, interleaved with launches without the delay.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.places import compare_peaks, compare_places
from pytest_distbench.judging.screening import is_timing
from pytest_distbench.judging.terms import Terms, accepted_changes
from pytest_distbench.judging.thresholds import LOOKS
from pytest_distbench.judging.words import metric_text
from pytest_distbench.launch.trace import Side, busy_communication, write_file, write_ranks
from pytest_distbench.records.iteration import CANDIDATE, CaseTrace
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.options import BY_TOLERANCE
from pytest_distbench.records.places import CasePlaces
from pytest_distbench.records.plan import LaunchRequest, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control, Finding, Step
from pytest_distbench.run.against import Variant
from pytest_distbench.run.comparisons import Stored
from pytest_distbench.run.confirm import (
    Allowance,
    Interleaved,
    Rerun,
    for_places,
    in_time,
    judge_interleaved,
)
from pytest_distbench.run.directory import place
from pytest_distbench.run.kinds import kind_of
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import PairedLaunches, Source
from pytest_distbench.store.baselines import NotRecorded
from pytest_distbench.store.files import replace_file
from pytest_distbench.units import about

SUFFIX = ".trace.json.gz"


def wants_trace(settings: Settings, result: CaseResult) -> bool:
    """Whether --distbench-trace wants a trace of a judged case; none if its regression was expected."""
    if settings.trace is None or not settings.judges or result.launches[-1].outcome != "passed":
        return False
    slower = [v for v in result.verdicts if v.kind == "regressed" and (is_timing(v, v.unit) or v.unit == "s")]
    return settings.trace in ("all", "all:ranks") or (bool(slower) and not result.xfail_perf)


def trace_case(
    session: Session, request: CaseRequest, source: Source, result: CaseResult, rerun: Rerun | None
) -> CaseTrace | None:
    """Launch a case, and the other side of its A/B, once more for a trace, or return None if none is wanted.

    The trace has the reason if a launch failed.
    """
    launched = request.launched
    if launched is None or not wants_trace(session.settings, result):
        return None
    variant = _other_side(session, request, source, rerun)
    if why := _why_not_profiled(session, launched):
        return CaseTrace(why_not=why)
    traced: dict[str, Side] = {}
    troubles = []
    with session.alone(launched.world_size, takes_host=source.takes_host):
        for side in (variant, None) if variant is not None else (None,):
            name = str(side or CANDIDATE)
            try:
                traces = session.launching.profile(launched, len(source), side)
            except DistbenchError as error:
                troubles.append(f"the launch of {name} with the profiler: {error}")
            else:
                of = "" if side is None else f"({side.revision.commit[:10] if side.revision else side})"
                traced[name] = (CANDIDATE if side is None else "base", of, traces)
    if not traced:
        return CaseTrace(why_not="; ".join(troubles))
    settings, known = session.settings, place(session.settings.traces, launched.title)
    path = known.with_name(known.name + SUFFIX)
    try:
        files = {path: write_file(list(traced.values()), result.places)}
        folders = []
        for called, _, seen in traced.values() if str(settings.trace).endswith(":ranks") else ():
            folders.append(folder := known.with_name(f"{known.name}.{called}"))
            of_ranks = write_ranks(seen, request.case.conditions.backend, result.places)
            files |= {LaunchFiles(folder).whole_trace(rank): content for rank, content in of_ranks.items()}
        files |= {settings.traces / ".gitignore": b"*\n"} if settings.logs is None else {}
        for target, content in files.items():
            with replace_file(target, next_step="Give a writable folder: --distbench-out DIR") as file:
                file.write(content)
    except DistbenchError as error:
        return CaseTrace(why_not=str(error))
    sides = {name: busy_communication(side[2]) for name, side in traced.items()}
    return CaseTrace(path=str(path), of_ranks=[*map(str, folders)], sides=sides, why_not="; ".join(troubles))


def explain_places(
    session: Session, request: CaseRequest, source: Source, result: CaseResult, rerun: Rerun | None
) -> CaseResult:
    """Launch both sides of a timing that A/B found regressed, or of peak memory, under a recorder of places.

    For a timing the baseline runs twice, for the noise, if that is short enough. Returns the result with what was
    found, or with the reason if a launch failed.
    """
    launched, slower = request.launched, _slower_by_ab(result)
    larger = [v for v in result.verdicts if v.kind == "regressed" and v.name == PEAK_MEMORY and v.current is not None]
    if launched is None or not (slower or larger) or result.xfail_perf:
        return result
    variant, seconds = _other_side(session, request, source, rerun), math.inf
    if variant is None and larger:
        variant, seconds = _recorder(session, request, source), session.settings.confirm_budget_s
    if variant is None:
        return result

    def unknown(why_not: str) -> CaseResult:
        places = CasePlaces(why_not=why_not)
        return replace(result, places=places if slower else None, memory_places=places if larger else None)

    if why := _why_not_profiled(session, launched):
        return unknown(why)
    number, took_s = for_places(source.launches)
    seconds, left_s = (seconds, seconds) if rerun is None else (rerun.budget.seconds, rerun.budget.left_s)
    if took_s > left_s:
        more_s = math.ceil(seconds + took_s)
        return unknown(f"it takes about {about(took_s)} more: --distbench-confirm=auto:{more_s}")
    began_at, sides = time.monotonic(), [variant, None, variant][: 2 if not slower else 3 if rerun is None else number]
    launched = in_time(launched, [launch.wall_s for launch in source.launches])
    try:
        with session.alone(launched.world_size, takes_host=source.takes_host):
            launch = functools.partial(session.launching.places, launched, len(source), memory=bool(larger))
            then, now, *again = map(launch, sides)
    except DistbenchError as error:
        return unknown(f"a launch that records places failed: {error}")
    took = {"launches": len(sides), "took_s": time.monotonic() - began_at}
    if slower:
        worst = max(slower, key=lambda v: v.ratio or 0.0)
        added_s = _added(worst) if worst.unit == "s" else None
        found = compare_places(now, then, again[0] if again else None, worst.metric, added_s=added_s)
        result = replace(result, places=replace(found, **took))
    if larger:
        worst = max(larger, key=_added)
        found = compare_peaks(now, then, worst.metric, added_bytes=_added(worst))
        result = replace(result, memory_places=replace(found, **took))
    return result


def _added(regressed: Finding) -> float:
    return (regressed.current or 0.0) - (regressed.baseline or 0.0)


def _slower_by_ab(result: CaseResult) -> list[Finding]:
    regressed = [v for v in result.verdicts if v.kind == "regressed" and v.statistic.startswith("A/B")]
    return [v for v in regressed if is_timing(v, v.unit) or v.unit == "s"]


def _other_side(session: Session, request: CaseRequest, source: Source, rerun: Rerun | None) -> Variant | None:
    variant = session.launching.compared_with if rerun is None else rerun.variants.get(request.case.key)
    return variant if source.others else None


def _recorder(session: Session, request: CaseRequest, source: Source) -> Variant | None:
    """The baseline commit of a case that was compared with its stored baseline, or None if that code is the same."""
    if session.confirmer is None or session.settings.is_paired:
        return None
    with contextlib.suppress(NotRecorded):
        variant, _ = session.confirmer.recorder(session.store.path(request.case.test, request.case.key), source)
        return None if variant.is_itself else variant
    return None


def _why_not_profiled(session: Session, launched: LaunchRequest) -> str:
    why = kind_of(launched.work).why_no_ranks
    if not why and session.launching.hosting(launched.work).hosts == "many":
        why = "its ranks are of several hosts"
    return why


HERE = Variant(revision=None, interpreter=None)  # the candidate without the delay

BEYOND = 4 / 3
"""Injected slowdown over the tolerance that it has to exceed: one of exactly the tolerance is no regression."""

LEAST_SHARE = 0.05  # of a case that tolerates next to nothing


def timings_of(terms: Terms, launch: LaunchRecord, *, left_out: Collection[str] = ()) -> list[str]:
    return [
        m.key
        for m in launch.measurements
        if is_timing(m, m.unit) and m.is_judged and terms.wants(m.name) and m.name not in left_out
    ]


def share_beyond(tolerances: Iterable[float]) -> float:
    """The delay of timed code, as a share of its duration, that is beyond all of these tolerances."""
    return max(LEAST_SHARE, BEYOND * max(tolerances))


def other_failure(verdicts: Sequence[Finding], timings: Collection[str]) -> Finding | None:
    """The verdict that fails the case apart from its timings, so that these say nothing, or None."""
    return next((v for v in verdicts if v.is_failure and v.metric not in timings), None)


OWN_TIMINGS = (
    "nothing in it could be delayed: it takes its own times, with none of rank.timed, rank.goal and rank.phase"
)
DERIVED = "a number that distbench.judge computes from several runs cannot be delayed as a whole"


class _Delayed(Interleaved):
    """A/B comparison of launches with the injected delay and interleaved ones without it."""

    def __init__(self, request: CaseRequest, tolerances: Mapping[str, float], budget: Allowance) -> None:
        super().__init__(request, LOOKS, budget)
        self._tolerances = tolerances

    def may_begin(self, source: Source, look: int) -> bool:
        """Whether there is time for a look; for the first one always, because the control needs it."""
        return look == LOOKS[0] or super().may_begin(source, look)

    def judge(self, source: Source) -> list[Finding]:
        if source.alone or not source.launches:
            return []
        found = judge_interleaved(
            self.request.terms,
            self.request.case,
            source.sides,
            tolerances=self._tolerances,
            name="no delay",
            cases=1,
        )
        return list(found.values())


class _Injected:
    def __init__(self, session: Session, launched: LaunchRequest, request: CaseRequest, control: Control) -> None:
        self._session = session
        self._request = request
        self._launched = replace(launched, delay=control.share, timeout_s=launched.timeout_s * (1 + control.share))
        self._began_at = time.monotonic()
        self._control = control
        self._count = 0

    def follow(self, timings: list[str]) -> Control:
        session = self._session
        stored, alone = session.stored(self._request), session.source(self._launched)
        result = session.decide(self._request, alone, stored)
        self._count = len(alone)
        self._control = replace(self._control, has_baseline=stored.has_numbers)
        if alone.failed is not None:
            return self._untried(f"a launch with the delay failed: {alone.failed.reason}")
        if not any(launch.delayed_s for launch in alone.launches):
            return self._untried(OWN_TIMINGS)
        if failure := other_failure(result.verdicts, timings):
            return self._untried(f"{metric_text(failure)} is {failure.kind} already, without any delay")
        if result.xfail_perf:
            return self._untried(f"its regression is expected: {result.xfail_perf}")
        found = [v for v in result.verdicts if v.metric in timings]
        if any(v.code == "bound" for v in found):
            return self._decided("bound", result, timings)
        if stored.has_numbers:
            try:
                suspect = stored.suspect(alone, result, ())
            except NotRecorded as error:
                return self._decided("stored", result, timings, why_alone=str(error))
            if session.confirmer is None:
                return self._decided("stored", result, timings, why_alone="--distbench-confirm=off")
            if suspect is None:
                return self._decided("screening", result, timings)
        elif alone.why_not_interleaved:
            return self._untried(f"no baseline, and {alone.why_not_interleaved}")
        return self._interleaved(stored, alone, result, timings)

    def _interleaved(self, stored: Stored, alone: Source, result: CaseResult, timings: list[str]) -> Control:
        session = self._session
        bounded = in_time(self._launched, [launch.wall_s for launch in alone.launches])
        pairs = PairedLaunches(session.launching, bounded, HERE, has_control=True)
        budget = Allowance(session.settings.confirm_budget_s)
        tolerances = accepted_changes(self._request.terms, result.launches, stored.baseline)
        with budget.waiting(session.alone(self._request.case.world_size, takes_host=pairs.takes_host)):
            verdicts = _Delayed(self._request, tolerances, budget).decide_in_time(pairs)
        self._count += len(pairs.launches) + len(pairs.others) + len(pairs.controls)
        failed = pairs.failed.reason if pairs.failed is not None else pairs.alone
        if failed:
            return self._untried(f"an A/B launch failed: {failed}")
        return self._decided("turns", replace(result, verdicts=verdicts), timings)

    def _decided(self, step: Step, result: CaseResult, timings: list[str], *, why_alone: str = "") -> Control:
        return replace(
            self._control,
            step=step,
            verdicts=[v for v in result.verdicts if v.metric in timings],
            why_alone=why_alone,
            **self._cost(),
        )

    def _untried(self, why_not: str) -> Control:
        return replace(self._control, why_not=why_not, **self._cost())

    def _cost(self) -> Mapping[str, float]:
        return {"launches": self._count, "took_s": time.monotonic() - self._began_at}


def inject_slowdown(session: Session, request: CaseRequest, healthy: CaseResult) -> Control | None:
    """Inject a slowdown into a case and report whether it is detected, or return None without option or timings."""
    asked, launched, last = session.settings.control, request.launched, healthy.launches[-1]
    if asked is None:
        return None
    if launched is None:
        return Control(why_not=DERIVED) if any(m.is_noisy for m in last.measurements) else None
    if last.outcome != "passed":
        return None
    printed = launched.read if isinstance(launched.work, Ranks) else {}
    timings = timings_of(request.terms, last, left_out=printed)
    if not timings:
        return None
    if why := kind_of(launched.work).why_no_delay:
        return Control(why_not=why)
    tolerances = accepted_changes(request.terms, healthy.launches, session.stored(request).baseline)
    share = share_beyond(tolerances[key] for key in timings) if asked == BY_TOLERANCE else float(asked)
    left_out = sorted({m.name for m in last.measurements if m.name in printed})
    control = Control(share=share, is_chosen=asked != BY_TOLERANCE, left_out=left_out)
    return _Injected(session, launched, request, control).follow(timings)
