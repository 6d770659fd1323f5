"""Compare the launches of a case with a baseline, stored or interleaved: one finding per metric. Pure, no I/O.

``comparison`` decides about one metric. Here decisions about several metrics together are added: sizes of a sweep,
seeds of a training, fingerprints, and metrics that are missing.

A slowdown measured on throttled GPUs is *inconclusive*. Power caps throttle most trainings on most GPUs, so only what
is worse than at the baseline counts; and one launch of several does not.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pytest_distbench.judging.bounds import carry_over
from pytest_distbench.judging.comparison import Comparison, as_info
from pytest_distbench.judging.deciders import NO_BASELINE, Absence, decide, precondition
from pytest_distbench.judging.entry import few_launches, make_baseline, norm_of
from pytest_distbench.judging.fingerprint_rule import fingerprints_of, judge_fingerprints
from pytest_distbench.judging.screening import (
    Neighbours,
    Screening,
    as_one,
    error_share,
    find_runs,
    is_timing,
    stored_together,
)
from pytest_distbench.judging.terms import (
    TOO_GOOD,
    Terms,
    accepted_changes,
    by_metric,
    left_out,
    lost_part,
    missing_finding,
    staleness,
    tolerance_of_memory,
    version_changes,
)
from pytest_distbench.judging.thresholds import BUSIER_SHARE, Circumstances, typical_noise, whole
from pytest_distbench.judging.training_rule import (
    LOST_SEED,
    NOT_REPEATED,
    CurveSays,
    Family,
    curve_says,
    judge_family,
    loss_share,
)
from pytest_distbench.judging.weights_rule import changes
from pytest_distbench.records.case import BaselineEntry, BaselineName, Case
from pytest_distbench.records.environment import GpuReport, computes_in_float32
from pytest_distbench.records.iteration import TRAINING_STEP, of_rank
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import FINGERPRINT, PEAK_MEMORY, WEIGHTS, Sample, metric_key, metric_name, without
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, RunRecord

Metrics = Mapping[str, Sequence[Sample]]  # metric key -> its sample in each launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Launches that alternated with those of this run, in pairs.

    Attributes:
        looks: numbers of pairs at which a decision is made, ascending.
        tolerance_of: accepted change of a metric, as a fraction.
        baseline: launches of the other side, one per launch of this run.
        controls: second launches of the other side, if three launches alternate: the mean of both is the other side.
        ab: beginning of sentences on timings then: ``interleaved A/B with 3f2a91c0d4``.
        is_judge: whether the other side's tests decide (``--distbench-judge=base``), so that no redefinition excuses.
    """

    baseline: Sequence[LaunchRecord]
    looks: tuple[int, ...]
    tolerance_of: Callable[[Sample], float]
    spending: int = 2
    controls: Sequence[LaunchRecord] = ()
    ab: str = ""
    is_judge: bool = False


def compare(
    terms: Terms,
    case: Case,
    launches: Sequence[LaunchRecord],
    baseline: BaselineEntry | None = None,
    *,
    paired: Pairs | None = None,
    comparisons: int,
    absent: Absence = NO_BASELINE,
    screening: Screening | None = None,
) -> list[Finding]:
    """Compare launches with a baseline, or with interleaved launches of another revision."""
    terms = terms.of(launches)
    entry = make_baseline(case, paired.baseline, paired.baseline[0].software) if paired is not None else baseline
    stale = staleness(entry, case) if entry is not None else None
    absent = stale or absent
    stored = entry.metrics if entry is not None and not stale else {}
    changed = ", ".join(version_changes(entry.software, launches[0].software)) if entry is not None else ""
    most = paired.looks[-1] if paired is not None else terms.max_launches
    found = by_metric(launches)
    both = [key for key in found if key in stored and terms.wants(metric_name(key))]
    lost = {key: why for key in both if (why := lost_part(stored[key], found[key]))}
    wanted = {key: m if terms.wants(m[0].name) else [as_info(one) for one in m] for key, m in found.items()}
    under = Circumstances(
        tolerance=0.0,
        comparisons=comparisons,
        max_launches=most,
        same_software=entry is not None and not changed,
        cores=terms.cores,
    )
    findings = judge_trainings(
        terms,
        wanted,
        stored,
        same_software=under.same_software,
        launches=launches,
        can_repeat=can_repeat([*(paired.baseline if paired is not None else ()), *launches]),
        asks=paired is None and len(launches) == 1 < most,
        entry=entry,
        absent=absent,
        lost=lost,
        is_judge=paired is not None and paired.is_judge,
    )
    if paired is None:
        sides, tolerances, under = _with_stored(terms, launches, entry, stored, wanted, under)
    else:
        sides, tolerances, under = _with_pairs(terms, launches, paired, wanted, under)
    again = in_pairs(paired.controls, launches, wanted, terms) if paired is not None and paired.controls else {}
    runs = find_runs(now[0] for then, now in sides.values() if then)
    noise = typical_noise(stored) if paired is None else {}
    compared = {
        key: Comparison(
            baseline=then,
            candidate=now,
            control=again.get(key, ((), ()))[0] if then else (),
            ab=paired.ab if paired is not None else "",
            under=dataclasses.replace(
                under,
                tolerance=tolerances[key],
                noise_floor=noise.get(now[0].name, 0.0),
                share=error_share(key, runs),
            ),
            absent=absent,
            lost=lost.get(key, ""),
            is_judged_by_other=paired is not None and paired.is_judge,
            screening=screening,
        )
        for key, (then, now) in sides.items()
        if not METRIC_KINDS[now[0].better].is_of_training
    }
    timings = [c for c in compared.values() if paired is None and is_timing(c.metric, c.metric.unit) and c.baseline]
    if len(timings) > 2 and sum(c.change < -math.log(TOO_GOOD) for c in timings) > len(timings) / 2:
        compared = {key: dataclasses.replace(c, is_faster_machine=True) for key, c in compared.items()}
    runs = [run for run in runs if not any(precondition(compared[key]) for key in run.keys)]
    neighbours = _decide_runs(runs, compared, launches, paired, stored, under)
    findings += [
        decide(dataclasses.replace(c, neighbours=[of_run for of_run in neighbours if key in of_run[0].keys]))
        for key, c in compared.items()
    ]
    known = entry.fingerprints if entry is not None and not stale else {}
    known = {key: known[key] for key in known.keys() - left_out(list(known), found, terms)}
    if (prints := fingerprints_of(launches)) or known:
        findings.append(
            judge_fingerprints(
                known,
                prints,
                launches=len(launches),
                lines=launches[-1].lines,
                software=changed,
                absent=None if absent is NO_BASELINE else absent,
                is_wanted=terms.wants(FINGERPRINT),
                is_last=len(launches) >= most or case.conditions.backend == "fake",
            )
        )
    findings += _missing(terms, launches, stored, found, is_paired=paired is not None)
    return [_of_busy_host(finding) if finding.name in terms.not_evaluated else finding for finding in findings]


def _of_busy_host(finding: Finding) -> Finding:
    return replace(finding, code="host-busy", reason="not evaluated: another run measured on this host")


Sides = Mapping[str, tuple[Sequence[Sample], Sequence[Sample]]]  # metric key -> samples of both sides


def _with_stored(
    terms: Terms,
    launches: Sequence[LaunchRecord],
    entry: BaselineEntry | None,
    stored: Metrics,
    wanted: Metrics,
    under: Circumstances,
) -> tuple[Sides, dict[str, float], Circumstances]:
    sides = {key: (stored.get(key, ()), now) for key, now in wanted.items()}
    under = dataclasses.replace(
        under,
        busier_cores=busier_cores(entry, launches),
        crowding=crowding(entry, launches, cores=terms.cores),
        disturbance=disturbance(entry.gpu_norm if entry is not None else None, launches),
    )
    return sides, accepted_changes(terms, launches, entry), under


def _with_pairs(
    terms: Terms, launches: Sequence[LaunchRecord], paired: Pairs, wanted: Metrics, under: Circumstances
) -> tuple[Sides, dict[str, float], Circumstances]:
    sides = in_pairs(paired.baseline, launches, wanted, terms)
    tolerances = {}
    for key, (then, (now, *_)) in sides.items():
        own = METRIC_KINDS[now.better].tolerance
        if METRIC_KINDS[now.better].is_memory:
            named = terms.own_tolerance_of(now.name, ())
            own = tolerance_of_memory(then) if named is None else named
        tolerances[key] = paired.tolerance_of(now) if own is None else own
    noisy = [now[0] for _, now in sides.values() if now[0].is_noisy]
    under = dataclasses.replace(
        under,
        comparisons=under.comparisons * max(1, len(noisy)),
        whole_comparisons=under.comparisons * max(1, sum(whole(m) is not None for m in noisy)),
        looks=paired.looks,
        spending=paired.spending,
    )
    return sides, tolerances, under


def _missing(
    terms: Terms, launches: Sequence[LaunchRecord], stored: Metrics, found: Metrics, *, is_paired: bool
) -> list[Finding]:
    missing = [k for k in stored if metric_name(k) != PEAK_MEMORY and k not in found and terms.wants(metric_name(k))]
    reasons = left_out(missing, found, terms)
    lacks = "the baseline has it, and this run did not measure it"
    lacks = "the other revision records it, the candidate does not" if is_paired else lacks
    return [
        missing_finding(key, stored[key], lacks, found=found, launches=launches, left_out=reasons.get(key, ""))
        for key in missing
    ]


def _decide_runs(
    runs: Sequence[Neighbours],
    compared: Mapping[str, Comparison],
    launches: Sequence[LaunchRecord],
    paired: Pairs | None,
    stored: Metrics,
    under: Circumstances,
) -> list[tuple[Neighbours, Finding, Sequence[Comparison]]]:
    """Decide about runs of neighbouring sizes, each as one number; the shortest first."""
    found: dict[Neighbours, list[list[Sample]]] = {}
    for run in runs:
        if paired is None:
            now = [m for launch in launches if (m := as_one(launch, run)) is not None]
            found[run] = [stored_together([stored[key] for key in run.keys]), now, []]
        else:
            sides = [side for side in (paired.baseline, launches, paired.controls) if side]
            rows = [[as_one(launch, run) for launch in row] for row in zip(*sides, strict=True)]
            full = [[m for m in row if m is not None] for row in rows if None not in row]
            found[run] = [[row[i] for row in full] for i in range(len(sides))] + [[]] * (3 - len(sides))
    noise = typical_noise({run.key: then for run, (then, *_) in found.items() if then}) if paired is None else {}
    decided: list[tuple[Neighbours, Finding, Sequence[Comparison]]] = []
    for run, (then, now, again) in found.items():
        sizes = [compared[key] for key in run.keys]
        accepted = [one.under.tolerance for one in sizes]
        of_run = dataclasses.replace(
            under,
            tolerance=max(accepted) if paired is None else min(accepted),
            noise_floor=noise.get(metric_name(run.key), 0.0),
            share=run.share,
        )
        if then and now:
            ab = paired.ab if paired is not None else ""
            made = Comparison(baseline=then, candidate=now, control=again, ab=ab, under=of_run)
            decided.append((run, decide(made), sizes))
    return decided


def in_pairs(
    baseline: Sequence[LaunchRecord], launches: Sequence[LaunchRecord], wanted: Metrics, terms: Terms
) -> dict[str, tuple[Sequence[Sample], Sequence[Sample]]]:
    """Metric key -> (samples of the other side, samples of this run), one per pair; a lacking one has no value.

    If no launch of the other side has the metric, that side is empty. Pairs made for other metrics are left out.
    """
    found: dict[str, tuple[Sequence[Sample], Sequence[Sample]]] = {}
    for key, [first, *_] in wanted.items():
        lacking = replace(first, value=None)
        wants = [not launch.only or key in launch.only for launch in launches]
        sides: list[list[Sample]] = [
            [
                next((m for m in launch.measurements if m.key == key), lacking)
                for launch, is_wanted in zip(side, wants, strict=True)
                if is_wanted
            ]
            for side in (baseline, launches)
        ]
        there, here = sides
        if not terms.wants(first.name):  # what the candidate alone calls info is judged as the other side has it
            there, here = ([as_info(m) for m in side] for side in sides)
        if here:
            found[key] = [] if all(m is lacking for m in there) else there, here
    return found


def judge_trainings(
    terms: Terms,
    found: Metrics,
    stored: Metrics,
    *,
    same_software: bool,
    launches: Sequence[LaunchRecord] = (),
    can_repeat: bool = True,
    asks: bool = False,
    entry: BaselineEntry | None = None,
    absent: Absence = NO_BASELINE,
    lost: Mapping[str, str] | None = None,
    is_judge: bool = False,
) -> list[Finding]:
    """Make one finding per convergence metric, over its seeds; curves first, as they show changed arithmetic."""
    families: dict[tuple[bool, str, str], dict[str, Sequence[Sample]]] = {}
    for key, measurements in found.items():
        first = measurements[0]
        if METRIC_KINDS[first.better].is_of_training:
            training = metric_key("", without(first.at, "seed"))
            families.setdefault((first.better != "curve", training, first.name), {})[key] = measurements
    all_software = [launch.software for launch in launches] + [entry.software if entry is not None else {}]
    is_exact = all(map(computes_in_float32, all_software))
    ends_alike = _ends_in_the_same_weights(found, stored)
    findings = []
    curves: dict[str, CurveSays] = {}
    loss_shares: dict[str, float | None] = {}
    without_seed: set[str] = set()
    for (_, training, name), current in sorted(families.items(), key=lambda item: item[0][0]):
        known = {key: stored[key] for key in current if key in stored}
        by_hand = [entry.tolerances.get(key) for key in known] if entry is not None else []
        family = Family(
            current=current,
            stored=known,
            same_software=same_software,
            is_exact=is_exact,
            ends_alike=ends_alike,
            updates=updates_of(launches[0]) if launches else 0,
            curve=curves.get(training, "nothing"),
            loss_share=loss_shares.get(training),
            can_repeat=can_repeat,
            lost_its_seed=training in without_seed,
            tolerance=terms.own_tolerance_of(name, [*by_hand, entry.tolerance if entry is not None else None]),
            asks=asks,
            absent=absent,
            lost=next((why for key, why in (lost or {}).items() if key in current), ""),
            is_judged_by_other=is_judge,
        )
        finding = judge_family(family)
        if (says := curve_says(finding)) is not None:
            loss_shares[training] = loss_share(family)
            curves[training] = max(says, curves.get(training, says), key=get_args(CurveSays).index)
        if finding.reason.startswith((LOST_SEED, NOT_REPEATED)):
            without_seed.add(training)
        findings.append(finding)
    return findings


def _ends_in_the_same_weights(found: Metrics, stored: Metrics) -> bool:
    now = [m for metric in found.values() for m in metric if m.name == WEIGHTS]
    then = [metric[0] for metric in stored.values() if metric[0].name == WEIGHTS]
    have_changed = any(s.change for m in then for named in m.tensors.values() for s in named.values())
    return (
        bool(now)
        and have_changed
        and all(a.identity == b.identity and not changes(a.tensors, b.tensors) for a in then for b in now)
    )


def updates_of(launch: LaunchRecord) -> int:
    """Number of optimizer steps that rank 0 of a script took in a launch, or 0 if they were not counted."""
    step = launch.fingerprints.get(TRAINING_STEP)
    course = of_rank(step.course, 0) if step is not None else None
    return course.steps if course is not None and course.is_whole else 0


def can_repeat(launches: Sequence[LaunchRecord]) -> bool:
    """Whether a training can repeat its digits: on CUDA only with deterministic algorithms."""
    return all("cuda" not in launch.software or launch.software.get("deterministic") == "on" for launch in launches)


def busier_cores(entry: BaselineEntry | None, launches: Sequence[LaunchRecord]) -> float:
    now = [f.foreign_cores for f in launches if f.foreign_cores is not None]
    if entry is None or entry.foreign_cores is None or not now:
        return 0.0
    return statistics.median(now) - entry.foreign_cores


def crowding(entry: BaselineEntry | None, launches: Sequence[LaunchRecord], *, cores: int) -> float | None:
    """Factor by which other processes prolonged the median launch, over that at the baseline, or None if unknown.

    If they wanted no more cores than then, they are not the cause: helpers that the code starts wait, too, and so does
    a container with a share of the CPUs.
    """
    now = [launch.crowding for launch in launches if launch.crowding is not None]
    if entry is None or entry.crowding is None or entry.foreign_wanted is None or not now:
        return None
    more = statistics.median(launch.foreign_wanted or 0.0 for launch in launches) - entry.foreign_wanted
    return statistics.median(now) / entry.crowding if more > BUSIER_SHARE * cores else 1.0


ORDINARY = {"power cap": 0.25}
"""Reasons for lower clocks of a GPU that are ordinary: they count only if active for this share of the time more than
at the baseline, and if the clock is lower."""
SHARE = 0.1  # of the time more than at the baseline, from which any other reason counts
SLOWER_MHZ = 0.98  # a median GPU clock below this fraction of the baseline's is lower
_ALIKE_W, _ALIKE_MHZ = 1.0, 1.0


def disturbance(then: GpuReport | None, launches: Sequence[LaunchRecord]) -> str:
    """Why the GPU may explain a slowdown, in a clause, or ""."""
    now = norm_of(launches)
    if now is None:
        return ""
    if then is not None and now.by_mps and not then.by_mps:
        return "kernels ran through MPS (nvidia-cuda-mps-server); at the baseline they did not"
    then = then or GpuReport()
    watched = [launch.gpu_reports for launch in launches if launch.gpu_reports]
    shared = [next(gpu for gpu in gpus if gpu.others) for gpus in watched if any(gpu.others for gpu in gpus)]
    if shared and 2 * len(shared) >= len(watched):
        return f"{shared[-1].label} was shared with {', '.join(shared[-1].others)}"
    if _is_lower(now.power_limit_w, then.power_limit_w, _ALIKE_W):
        return f"the power limit is {now.power_limit_w:.0f} W; at the baseline it was {then.power_limit_w:.0f} W"
    if now.sm_limit_mhz is not None and _is_lower(now.sm_limit_mhz, then.sm_limit_mhz or then.sm_mhz, _ALIKE_MHZ):
        before = f"{then.sm_limit_mhz:.0f} MHz" if then.sm_limit_mhz is not None else "free"
        return f"the SM clock is set to {now.sm_limit_mhz:.0f} MHz; at the baseline it was {before}"
    for name, share in sorted(now.held.items(), key=lambda item: (item[0] in ORDINARY, -item[1])):
        before_share = then.held.get(name, 0.0)
        if share <= before_share + ORDINARY.get(name, SHARE):
            continue
        is_slower, frequencies = True, ""
        if now.sm_mhz is not None and then.sm_mhz is not None:
            is_slower = now.sm_mhz < SLOWER_MHZ * then.sm_mhz
            frequencies = f": {now.sm_mhz:.0f} MHz; at the baseline {then.sm_mhz:.0f} MHz"
        if name in ORDINARY and not is_slower:
            continue
        gpu = max((gpu for gpus in watched for gpu in gpus), key=lambda gpu: gpu.held.get(name, 0.0))
        return f"{gpu.label} was slowed down by {name} for {share:.0%} of the time{frequencies}"
    return ""


def _is_lower(now: float | None, then: float | None, alike: float) -> bool:
    return now is not None and then is not None and now < then - alike


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Verdicts on the cases that both runs have, and the names of the others.

    Attributes:
        verdicts: verdicts of the comparison of the newer run's launches with the older run's.
        few: cases of the older run with too few launches to estimate their noise.
    """

    verdicts: dict[BaselineName, list[Finding]] = field(default_factory=dict)
    failed: list[BaselineName] = field(default_factory=list)
    lost: list[BaselineName] = field(default_factory=list)
    added: list[BaselineName] = field(default_factory=list)
    few: int = 0


def compare_runs(old: RunRecord, new: RunRecord, *, tolerance: float) -> RunComparison:
    before = {name: result for name, result in _cases(old).items() if _has_passed(result)}
    after = _cases(new)
    baselines = {name: make_baseline(r.case, r.launches, r.environment.software) for name, r in before.items()}
    found = RunComparison(
        lost=sorted(before.keys() - after.keys()),
        added=sorted(after.keys() - before.keys()),
        few=sum(bool(few_launches(entry.metrics)) for entry in baselines.values()),
    )
    found.failed.extend(name for name in found.added if not _has_passed(after[name]))
    found.added[:] = [name for name in found.added if name not in found.failed]
    both = [name for name in after if name in before]
    comparisons = sum(m.is_noisy for name in both for m, *_ in baselines[name].metrics.values())
    for name in both:
        result = after[name]
        if not _has_passed(result):
            found.failed.append(name)
            continue
        # As if the newer run had been asked for exactly the launches it has: no answer stays open.
        terms = Terms(default_tolerance=tolerance, max_launches=1, cores=result.environment.cores)
        made = compare(terms, result.case, result.launches, baselines[name], comparisons=max(1, comparisons))
        own = {v.metric: v for v in result.verdicts}
        found.verdicts[name] = [carry_over(finding, own.get(finding.metric)) for finding in made]
    return found


def _cases(record: RunRecord) -> dict[BaselineName, CaseResult]:
    return {
        BaselineName(platform=r.environment.platform, test=r.case.test, key=r.case.key): r
        for r in record.results
        if r.reference.kind == "stored" and r.launches
    }


def _has_passed(result: CaseResult) -> bool:
    return all(launch.outcome == "passed" for launch in result.launches)
