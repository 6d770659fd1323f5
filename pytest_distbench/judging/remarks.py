"""Findings besides verdicts: likely causes of a case's regression, and remarks about a run. Pure.

Each is a sentence or two, and is never judged. A new cause is a row of :data:`CAUSES`, a new remark one of
:data:`RUN_REMARKS`, with a code in ``records/reasons.py``.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from pytest_distbench.extensions import Table
from pytest_distbench.judging.bounds import is_learned
from pytest_distbench.judging.entry import norm_of, phases_of
from pytest_distbench.judging.screening import is_timing
from pytest_distbench.judging.stats import BLIND_LIMIT
from pytest_distbench.judging.terms import TOO_GOOD, severity, software_changes, version_changes
from pytest_distbench.judging.thresholds import BUSIER_SHARE
from pytest_distbench.judging.words import metric_text
from pytest_distbench.records.iteration import NOT_RECORDED, TRAINING_STEP
from pytest_distbench.records.kinds import METRIC_KINDS, grouped
from pytest_distbench.records.metric import FINGERPRINT, UNASKED, WALL_TIME, metric_name
from pytest_distbench.records.reasons import REMARKS
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import (
    and_more,
    counted,
    format_change,
    format_percent,
    format_seconds,
    is_duration,
    is_rate,
    is_size,
)

_LATE_SHARE = 0.1  # a rank that comes later than the others by this share of the iteration delays them
_LATE_LAUNCHES = 0.8  # ... in this share of the launches: in one of them anything may have happened.
_SLOWEST_ITERATIONS, _SLOWEST_LAUNCHES = 0.9, 0.7
"""A rank is slow if it is the slowest in this share of the iterations, in more than this share of the launches."""
_PHASE_CHANGE = 0.1
_MOST_PHASES = 4
_COMPUTES, _WAITS = 0.7, 0.3
"""Shares of the added time that were spent computing: above the first it is work, below the second it is waiting."""
_GROWN, _GROWN_AMONG_OTHERS = 2.0, 1.25
"""CPU time that has grown by this factor was spent computing, however long ranks waited besides: if other processes
want the CPUs, the added work waits for them as well."""
_EXPOSED = 0.5
"""Share of the iterations in which the device waited for the host: below it, host time is no part of the timing."""
_AHEAD = 0.5
"""A host that is ahead of its device by this share of a step may have to wait until there is room on the queue."""
MOST_DIFFERENCES = 8
_MOST_UNUSED = 20


def find_causes(result: CaseResult) -> list[Finding]:
    """Likely causes of a regression, the most likely first: in the order of their codes."""
    found = [cause for find in CAUSES.values() for cause in find(result)]
    return sorted(found, key=lambda cause: list(REMARKS).index(cause.code))


def regressions(result: CaseResult) -> list[Finding]:
    """The verdicts of a case that are worse than the baseline, the largest change first."""
    worse = (v for v in result.verdicts if v.kind == "regressed" or v.row.may_be_confirmed)
    return sorted(worse, key=severity, reverse=True)


def communication(result: CaseResult) -> Iterator[Finding]:
    """Finding on a changed communication fingerprint, whether or not a metric regressed too."""
    is_slower = bool(regressions(result))
    for verdict in result.verdicts:
        if verdict.code == "communication":
            is_of_run = all("of the whole run" in line for line in verdict.differences)
            changed = f"communication {'of the run' if is_of_run and verdict.differences else 'per step'} changed"
            text = f"likely cause: {changed}" if is_slower else f"{changed.capitalize()}:"
            lines = verdict.differences[:MOST_DIFFERENCES]
            if (more := len(verdict.differences) - MOST_DIFFERENCES) > 0:
                lines.append(f"and {more} more")
            yield Finding(code="changed-communication", metric=verdict.metric, reason=text, differences=lines)


def name_of_rank(rank: int, result: CaseResult) -> str:
    """The rank, with its host if there are several."""
    hosts = hosts_of(result)
    return f"rank {rank} ({hosts[rank]})" if hosts else f"rank {rank}"


def hosts_of(result: CaseResult) -> list[str]:
    """The host of each rank, or empty if all are on this one."""
    return next((launch.hosts for launch in reversed(result.launches) if launch.hosts), [])


def phases(result: CaseResult) -> Iterator[Finding]:
    if not regressions(result):
        return
    before, now = result.reference.phases, phases_of(result.launches)
    longer = [name for name in now if name in before and now[name] > before[name] * (1 + _PHASE_CHANGE)]
    for name in sorted(longer, key=lambda name: before[name] - now[name])[:_MOST_PHASES]:
        text = f"phase {name}: {movement(before[name], now[name], format_seconds)}"
        yield Finding(code="longer-phase", reason=text)


def cpu_time(result: CaseResult) -> Iterator[Finding]:
    """Finding on whether the added time was spent computing: CPU time of all ranks against the slowest one's timing.

    Ranks that wait for their CPUs, because other processes compute on them, compute no more than before.
    """
    if result.case.device == "cuda":
        return  # a host that waits for an event spins
    for verdict in regressions(result):
        added_s = _added_s(verdict)
        if added_s is None or "cpu_s" not in verdict.companions:
            continue
        then, now = verdict.companions["cpu_s"]
        share = (now - then) / result.case.world_size / added_s
        used = [launch.foreign_cores for launch in result.launches if launch.foreign_cores is not None]
        crowding = [launch.crowding for launch in result.launches if launch.crowding is not None]
        is_shared = bool(used) and statistics.median(used) > BUSIER_SHARE * result.environment.cores
        is_shared = is_shared or (bool(crowding) and statistics.median(crowding) > 1 / (1 - BUSIER_SHARE))
        if share >= _COMPUTES:
            spent = "computing"
        elif is_shared and verdict.ratio is not None and now - then >= _COMPUTES * abs(verdict.ratio - 1) * then:
            spent = "computing, on CPUs that other processes used too"  # they stretch what is added as the rest
        else:
            spent = (
                "waiting, not computing (sleep, I/O, locks, a late rank)"
                if share <= _WAITS and now < then * (_GROWN_AMONG_OTHERS if is_shared else _GROWN)
                else "partly computing, partly waiting"
            )
            if is_shared:
                spent += "; it may wait for a CPU, as other processes used them"
        # Of a script's or a command's whole time there are no iterations.
        per = "in" if metric_name(verdict.metric) == WALL_TIME else "per iteration of"
        shown = movement(then, now, format_seconds)
        text = f"CPU time of all ranks {per} {verdict.metric}: {shown}: the added time is {spent}"
        yield Finding(code="added-time", metric=verdict.metric, reason=text)
        return


def host_time(result: CaseResult) -> Iterator[Finding]:
    """Finding on whether a GPU or the host of it added the time.

    The CPU time of a GPU's rank does not show it: a host that waits for an event spins.
    """
    world_size = result.case.world_size
    if result.case.device != "cuda":
        return
    for verdict in regressions(result):
        added_s = _added_s(verdict)
        if added_s is None or "host_s" not in verdict.companions or verdict.current is None:
            continue
        then, now = verdict.companions["host_s"]
        share = (now - then) / world_size / added_s
        _, exposed = verdict.companions.get("exposed", (0.0, float(world_size)))
        _, lead_s = verdict.companions.get("lead_s", (0.0, 0.0))
        if share <= _WAITS or exposed / world_size < _EXPOSED:
            added = "the added time is the device's"
        elif share >= _COMPUTES and lead_s / world_size < _AHEAD * verdict.current:
            added = (
                "the added time is the host's: it enqueues more slowly, or waits for the device "
                "(.item(), .cpu(), print)"
            )
        else:
            added = "the host waits for the device, or the device for the host: --distbench-trace shows which"
        shown = movement(then, now, format_seconds)
        text = f"host time of all ranks per iteration of {verdict.metric}: {shown}: {added}"
        spins = "CPU time does not show it: a host spins while it waits for an event of the device"
        yield Finding(code="added-time", metric=verdict.metric, reason=text, differences=[spins])
        return


def _added_s(verdict: Finding) -> float | None:
    if verdict.unit != "s" or verdict.current is None or not verdict.baseline:
        return None
    return verdict.current - verdict.baseline if verdict.current > verdict.baseline else None


def late_rank(result: CaseResult) -> Iterator[Finding]:
    """Finding on the rank that came late to the collectives, or else on the slowest one in most iterations."""
    failed = regressions(result)
    for verdict in failed:
        iteration_s = _iteration_s(result, verdict)
        known = any(verdict.metric in launch.late_s for launch in result.launches)
        key = verdict.metric if known else TRAINING_STEP  # which all of a script's timings are of
        late = [launch.late_s[key] for launch in result.launches if key in launch.late_s]
        if not late or iteration_s is None:
            continue
        rank, times = Counter(_latest(launch, _LATE_SHARE * iteration_s) for launch in late).most_common(1)[0]
        if rank is not None and times >= _LATE_LAUNCHES * len(late):
            typical = format_seconds(statistics.median(launch[rank] for launch in late))
            of = "a training step" if key == TRAINING_STEP else key
            who = name_of_rank(rank, result)
            text = f"{who} comes {typical} late to the collectives of {of}; the other ranks wait for it"
            yield Finding(code="late-rank", metric=verdict.metric, reason=text)
            return
    names = {v.metric for v in failed}
    votes: Counter[int] = Counter()
    total = 0
    for launch in result.launches:
        for m in launch.measurements:
            if m.key in names and m.spread is not None and m.spread.slowest_rank is not None:
                total += 1
                votes[m.spread.slowest_rank] += m.spread.slowest_share > _SLOWEST_ITERATIONS
    for rank, times in votes.most_common(1):
        if times > _SLOWEST_LAUNCHES * total:
            text = f"{name_of_rank(rank, result)} was the slowest in over 90 % of the iterations"
            yield Finding(code="late-rank", reason=text)


def _iteration_s(result: CaseResult, verdict: Finding) -> float | None:
    """Seconds of an iteration; for the whole time of a script, of one of its steps. None if unknown."""
    if verdict.current is None or verdict.unit != "s":
        return None
    if verdict.name != WALL_TIME:
        return verdict.current
    step = result.launches[-1].fingerprints.get(TRAINING_STEP)
    steps = max((course.steps for course in step.course.values()), default=0) if step is not None else 0
    return verdict.current / steps if steps else None


def _latest(late_s: Sequence[float], margin_s: float) -> int | None:
    rank = max(range(len(late_s)), key=late_s.__getitem__)
    others = max((t for r, t in enumerate(late_s) if r != rank), default=late_s[rank])
    return rank if late_s[rank] - others > margin_s else None


def frequencies(result: CaseResult) -> Iterator[Finding]:
    """Finding on the clocks of the slowest GPU, and on another CPU model: perhaps the machine is the cause."""
    then, now = result.reference.gpu_norm, norm_of(result.launches)
    if then is None or now is None or now.sm_mhz is None or then.sm_mhz is None:
        return
    changes = [f"SM {movement(then.sm_mhz, now.sm_mhz, '{:.0f} MHz'.format)}"]
    if then.memory_mhz and now.memory_mhz:
        changes.append(f"memory {movement(then.memory_mhz, now.memory_mhz, '{:.0f} MHz'.format)}")
    others = []
    if then.host_cpu and now.host_cpu and then.host_cpu != now.host_cpu:
        others = [f"CPU of the host: {now.host_cpu}; at the baseline: {then.host_cpu}"]
    text = f"median clocks of the slowest GPU: {', '.join(changes)}"
    yield Finding(code="gpu-clocks", reason=text, differences=others)


def algorithm(result: CaseResult) -> Iterator[Finding]:
    """Finding if other digits of a curve may come from NCCL, which without NCCL_ALGO chooses the order of its sums.

    Not for two ranks, which have one order only, nor for interleaved launches, whose sides choose alike.
    """
    if result.case.device == "cpu" or result.case.world_size < 3 or "NCCL_ALGO" in result.environment.variables:
        return
    if result.reference.kind == "paired":
        return
    for verdict in result.verdicts:
        if METRIC_KINDS[verdict.better].is_curve and (verdict.row.may_be_confirmed or verdict.code == "numerics"):
            text = f"{verdict.metric}: NCCL_ALGO is not set, so NCCL may sum in another order than at the baseline"
            advice = "set NCCL_ALGO=Ring (or Tree) and record the baseline again with it"
            yield Finding(code="free-algorithm", metric=verdict.metric, reason=text, differences=[advice])
            return


def movement(then: float, now: float, shown: Callable[[float], str]) -> str:
    change = f" ({format_change(now / then)})" if then else ""
    return f"{shown(then)} -> {shown(now)}{change}"


CAUSES: Table[str, Callable[[CaseResult], Iterable[Finding]]] = Table(
    "causes",
    {
        "communication": communication,
        "phases": phases,
        "CPU time": cpu_time,
        "host time": host_time,
        "late rank": late_rank,
        "clocks": frequencies,
        "algorithm": algorithm,
    },
)
"""Functions that find causes, by kind."""


_NUMBER = re.compile(r"[+-]?[\d.,]+ %")
_MOST_NAMES = 10

FEWEST_CASES = 4  # fewer that change the same way may do so by chance, or by one change in what they share

LEAST_MOVEMENT = math.log(1.05)  # the median case has changed by more than this, as a logarithm

EVEN = 0.5  # each case has changed by at least this share of the median one's change


def _compared(results: Sequence[CaseResult]) -> list[CaseResult]:
    return [r for r in results if r.update in ("", "completed") and r.verdicts]


def injected(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remarks on injected slowdowns: in how many cases they were detected, and which timings they cannot reach."""
    controls = [(r, r.control) for r in results if r.control is not None]
    groups = grouped((control.why_not, r.case.title) for r, control in controls if control.why_not)
    for why, titles in groups.items():
        yield Finding(code="not-injected", reason=f"nothing injected in {and_more(titles)}: {why}")
    for result, control in controls:
        if control.left_out:
            left_out = ", ".join(control.left_out)
            text = f"not delayed in {result.case.title}: {left_out}: the script measures these times itself"
            yield Finding(code="not-delayed", case=result.case.title, reason=text)
    tried = [control for _, control in controls if not control.why_not]
    if tried:
        found = sum(bool(control.found) for control in tried)
        chosen = [control.share for control in tried if control.is_chosen]
        of = f"{chosen[0] * 100:.3g} %" if chosen else "their tolerance (injected: a third more)"
        text = f"{found} of {counted(len(tried), 'case')} detected a slowdown of {of}"
        yield Finding(code="detected" if found == len(tried) else "undetected", reason=text)


def sensitivity(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Smallest slowdown that the timings would detect: the median one and the worst.

    A slowdown below the threshold passes, however quiet the timing is.
    """
    found = [
        (max(v.mde, v.threshold or 0.0), r, v)
        for r in _compared(results)
        for v in r.verdicts
        if v.is_judged and v.mde is not None and v.kind in ("unchanged", "improved", "environment") and _is_speed(v)
    ]
    if not found:
        return
    most, result, verdict = max(found, key=lambda one: one[0])
    where = f"{result.case.title} {metric_text(verdict)}"
    text = f"A slowdown below {_largest(most)} would not have been detected in {where}"
    if len(found) > 1:
        middle = _largest(statistics.median(mde for mde, _, _ in found))
        text = (
            f"A slowdown below {middle} would not have been detected (median of {len(found)} timings); "
            f"in the worst, {where}, one below {_largest(most)}"
        )
    if low := sum(v.code == "low-power" for _, _, v in found):
        text += f"; {low} could miss a slowdown of the tolerance: --distbench-confirm=always measures them by A/B"
    yield Finding(code="low-sensitivity" if low or most > BLIND_LIMIT else "sensitivity", reason=text)


def _largest(share: float) -> str:
    return format_percent(share).removeprefix("more than ")


def _is_speed(verdict: Finding) -> bool:
    return is_timing(verdict, verdict.unit) and (is_duration(verdict.unit) or is_rate(verdict.unit))


def changed_together(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remark that all cases changed the same way against stored baselines, by the median of each case's timings."""
    found = []
    for result in _compared(results):
        changes = [
            METRIC_KINDS[v.better].sign * math.log(v.ratio)
            for v in result.verdicts
            if v.is_noisy and v.ratio and v.ratio > 0 and v.unit and not is_size(v.unit)
        ]
        if changes and result.reference.kind == "stored":
            found.append(statistics.median(changes))
    middle = statistics.median(found) if len(found) >= FEWEST_CASES else 0.0
    if abs(middle) < LEAST_MOVEMENT or any(change / middle < EVEN for change in found):
        return
    factors = [math.exp(abs(change)) for change in found]
    word, span = "slower" if middle > 0 else "faster", f"{min(factors):.2f} to {max(factors):.2f} times"
    text = (
        f"all {len(found)} cases with timings are {word} than their baselines, by {span}: the cause is the machine, "
        "its software or the baselines, not one change; distbench doctor checks the machine, --distbench-against REF "
        "compares by A/B"
    )
    yield Finding(code="all-moved", reason=text)


def out_of_reach(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remark on metrics that passed and could not have failed.

    A noisy one, if its rule could miss a doubling (:func:`sensitivity` covers timings); an exact one, if the software
    is another; one that is judged over seeds, if besides there is one seed, and no curve confirms the baseline's
    training. A bound can fail all the same.
    """
    found: list[tuple[str, str]] = []
    for result in _compared(results):
        then, now = result.reference.software, result.environment.software
        changed = ", ".join(version_changes(then, now)) if then else ""
        followed = [v.at for v in result.verdicts if METRIC_KINDS[v.better].is_curve and v.kind == "unchanged"]
        for v in result.verdicts:
            is_seen = v.row.is_answer and v.code != "within-bound"
            has_passed = v.kind == "improved" or (v.kind == "unchanged" and is_seen)
            if not has_passed or not METRIC_KINDS[v.better].is_judged or v.bounds:
                continue
            if why := _why_out_of_reach(v, changed, is_same_training=v.at in followed):
                found.append((f"{result.case.title} {metric_text(v)}", why))
    for same in grouped((_NUMBER.sub("", why), (name, why)) for name, why in found).values():
        names = and_more([name for name, _ in same])
        text = f"{counted(len(same), 'metric')} could not have turned red: {names}: {same[0][1]}"
        yield Finding(code="out-of-reach", reason=text)


def _why_out_of_reach(verdict: Finding, other_software: str, *, is_same_training: bool) -> str:
    kind = METRIC_KINDS[verdict.better]
    if kind.is_noisy:
        mde = 0.0 if _is_speed(verdict) else verdict.mde or 0.0
        return f"minimum detectable slowdown {format_change(1 + mde)}" if mde > BLIND_LIMIT else ""
    if not other_software or verdict.name == FINGERPRINT:
        return ""
    if kind.is_exact:
        return f"exact numbers cannot be compared under other software versions ({other_software})"
    is_of_seeds = kind.counts_steps or kind.has_floor or kind.is_two_sided
    if is_of_seeds and "seeds" not in verdict.facts and not is_same_training:
        return f"one seed shows nothing under other software versions ({other_software})"
    return ""


def unconfirmed(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remarks on suspicious cases that were not confirmed by A/B: one for each reason, numbers aside."""
    groups = grouped((re.sub(r"\d", "", r.unconfirmed), r) for r in _compared(results) if r.unconfirmed)
    for found in groups.values():
        text = f"not confirmed by A/B: {and_more([r.case.title for r in found])}: {found[0].unconfirmed}"
        yield Finding(code="unconfirmed", reason=text)


def not_evaluated(results: Sequence[CaseResult]) -> Iterator[Finding]:
    if found := [r.case.title for r in results if any(v.code == "host-busy" for v in r.verdicts)]:
        text = f"{WALL_TIME} of {and_more(found)} not evaluated: host busy, as another run measured on it"
        yield Finding(code="not-evaluated", reason=text)


def unlinked(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remark on files that a recording read and git ignores, so that no A/B with its commit can run."""
    found = {name: r.case.title for r in results for launch in r.launches for name in launch.unlinked}
    if found:
        who = and_more(list(dict.fromkeys(found.values())))
        text = f"{who} reads {and_more(list(found))}, which git ignores: A/B with another revision needs it"
        link = f"to link it, write distbench_against_link = {', '.join(found)} into the ini file"
        yield Finding(code="unlinked", reason=f"{text}; {link}")


def contradictions(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remark on timings of a script that became much faster while its wall time did not: they may be of other work."""
    for result in results:
        wall = next((v.ratio for v in result.verdicts if v.name == WALL_TIME and v.ratio), 0.0)
        for v in result.verdicts if wall > 0 else ():
            if v.name == WALL_TIME or is_size(v.unit) or not METRIC_KINDS[v.better].is_noisy or not v.ratio:
                continue
            faster = v.ratio ** -METRIC_KINDS[v.better].sign
            if faster > TOO_GOOD and faster * wall > TOO_GOOD:
                text = f"{v.metric} says {faster:.3g} times as fast, and {WALL_TIME} changed by {format_change(wall)}"
                yield Finding(
                    code="contradiction", reason=f"{result.case.title}: {text}: do both still measure the same work?"
                )


def flaky_tests(results: Sequence[CaseResult]) -> dict[str, str]:
    """Tests that passed only when a plugin ran them again: node id -> at which attempt, and what ended the first."""
    tests = {result.nodeid: result.flaky for result in results if result.flaky}
    return {nodeid: f"flaky: passed at attempt {len(ended) + 1}, before: {ended[0]}" for nodeid, ended in tests.items()}


def flaky_lines(results: Sequence[CaseResult]) -> list[str]:
    names = {result.nodeid: result.test_name for result in results}
    return [f"{names[nodeid]} is {text}" for nodeid, text in flaky_tests(results).items()]


def flaky(results: Sequence[CaseResult]) -> Iterator[Finding]:
    lines = flaky_lines(results)
    if len(lines) > _MOST_NAMES:
        lines = [*lines[:_MOST_NAMES], f"{len(lines) - _MOST_NAMES} more tests are flaky"]
    yield from (Finding(code="flaky", reason=line) for line in lines)


def needless(results: Sequence[CaseResult]) -> list[Finding]:
    """Cases that are expected to fail, although every number is known to be no worse.

    Other digits of a training are not known to be harmless.
    """
    found = []
    for r in _compared(results):
        judged = [v for v in r.verdicts if v.is_judged]
        is_fine = all(v.kind in ("unchanged", "improved") and v.row.is_answer and not v.row.is_reported for v in judged)
        if r.xfail_perf and is_fine:
            text = f"xfail_perf of {r.case.title} is no longer needed: nothing regressed ({r.xfail_perf})"
            found.append(Finding(code="needless-xfail", case=r.case.title, reason=text))
    return found[:_MOST_NAMES]


def software(results: Sequence[CaseResult]) -> Iterator[Finding]:
    found: dict[str, Counter[str]] = {}
    for result in results:
        if result.reference.software and all(launch.outcome == "passed" for launch in result.launches):
            changes = software_changes(result.reference.software, result.environment.software)
            is_paired = result.reference.kind == "paired"
            text = "software differs from the baseline's" if is_paired else "software differs from the baselines'"
            found.setdefault(text, Counter()).update(changes)
    for text, counts in found.items():
        if counts:
            differs = ", ".join(f"{what} ({counted(number, 'case')})" for what, number in counts.items())
            yield Finding(code="software", reason=f"{text}: {differs}")


def not_recorded(results: Sequence[CaseResult]) -> Iterator[Finding]:
    reasons = ({f.missing for run in r.launches for f in run.fingerprints.values()} for r in results)
    counts = Counter(why for found in reasons for why in found if why.startswith(NOT_RECORDED))
    for why, number in counts.items():
        yield Finding(code="not-recorded", reason=f"no fingerprint of {counted(number, 'case')}: {why}")


def without_weights(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remark on trainings by a command or in an elastic job, whose results are not recorded; one for all cases."""
    found = [
        r.case.title
        for r in results
        if any(run.command or run.events for run in r.launches)
        and any(METRIC_KINDS[m.better].is_of_training or is_learned(m.name) for m in r.launches[-1].measurements)
    ]
    if found:
        text = f"{and_more(found)}: weights at the end and saved files are not compared in a command or an elastic job"
        yield Finding(code="not-recorded", reason=text)


def undescribed(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remark on bodies that communicate in loops of their own, which no fingerprint describes; one for all cases."""
    judged = (r for r in results if r.verdicts or r.update)
    if found := [r.case.title for r in judged if any(run.undescribed_collectives for run in r.launches)]:
        how = 'for step in rank.timed("step", iterations=N), or rank.goal'
        text = f"no fingerprint: {and_more(found)}: what the body sends is not compared; wrap its loop: {how}"
        yield Finding(code="unseen", reason=text)


def unjudged_learning(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Remarks on trainings of which no learned number, such as a loss, is judged: with a baseline, and without yet.

    A training is a case whose optimizer steps in the iteration, or the training step, that the fingerprint describes.
    On the backend ``fake`` no loss means anything.
    """
    found = []
    for result in results:  # by its kind, or by what its name says, a number may be what a training learns
        judged = [m for m in result.launches[-1].measurements if m.is_judged or m.bounds]
        learned = [m for m in judged if METRIC_KINDS[m.better].is_of_training or is_learned(m.name)]
        if _steps(result) and all(m.name in UNASKED for m in learned):
            found.append(result)
    is_new = [result.is_written or result.lacks_baseline for result in found]
    for code, group in (
        ("learning", [result for result, new in zip(found, is_new, strict=True) if new]),
        ("learning-known", [result for result, new in zip(found, is_new, strict=True) if not new]),
    ):
        if group:
            how = (
                'print its loss, and give read={"loss_curve": stdout("loss " + NUMBER, better="curve", first=10)}'
                if TRAINING_STEP in _steps(group[0])
                else 'keep its losses, and call rank.record("loss_curve", losses[:10], better="curve") after the loop'
            )
            names = and_more([result.case.title for result in group])
            text = f"{names}: trains, and nothing judges whether it learns; {how}"
            yield Finding(code=code, reason=text)


def _steps(result: CaseResult) -> list[str]:
    last = result.launches[-1]
    if last.events or result.case.conditions.fake_rank is not None:
        return []
    timed = {each.key for each in last.measurements} | {TRAINING_STEP}  # a step that was only traced trains nothing
    return [key for key, seen in last.fingerprints.items() if seen.totals.get("optimizer_steps") and key in timed]


def of_the_judge(name: str, not_used: Sequence[str], *, has_failed: bool) -> Finding:
    """Remark on the files of a change that were not used, as its base judged it (``--distbench-judge=base``)."""
    if not not_used:
        return Finding(
            code="judged-by-base",
            reason=f"judged by {name}: this change alters no test, conftest.py, baseline or setting",
        )
    were = "was" if len(not_used) == 1 else "were"
    text = f"judged by {name}: {counted(len(not_used), 'file')} of this change {were} not used"
    if has_failed:
        text += "; if a test fails because it is to change, review them, and run without --distbench-judge"
    more = len(not_used) - _MOST_UNUSED
    lines = [*not_used[:_MOST_UNUSED], *([f"and {more} more"] if more > 0 else [])]
    return Finding(code="judged-by-base", reason=text, differences=lines)


RUN_REMARKS: tuple[Callable[[Sequence[CaseResult]], Iterable[Finding]], ...] = (
    injected,
    sensitivity,
    changed_together,
    out_of_reach,
    unconfirmed,
    not_evaluated,
    unlinked,
    contradictions,
    flaky,
    needless,
    software,
    not_recorded,
    without_weights,
    undescribed,
    unjudged_learning,
)
"""Functions that find remarks on a run, in the order in which reports have them."""


def remarks(results: Sequence[CaseResult]) -> list[Finding]:
    return [found for find in RUN_REMARKS for found in find(results)]
