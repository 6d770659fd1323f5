"""From the launches of a case and its baseline entry to one judgement per metric. The rules are in ``metric``."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import get_args

from pytest_distbench.judging.fingerprint_rule import METRIC, fingerprints_of, judge_fingerprints, needs_more
from pytest_distbench.judging.losses import disturbance, left_out, lost_part, missing_verdict, more_than_stored
from pytest_distbench.judging.metric import BUSIER_SHARE, Circumstances, as_info, judge
from pytest_distbench.judging.neighbours import (
    Run,
    error_share,
    find_runs,
    runs_of_launch,
    stored_together,
    support,
)
from pytest_distbench.judging.stored_rule import typical_noise
from pytest_distbench.judging.terms import Judgement, Terms, staleness, version_changes
from pytest_distbench.judging.training_rule import (
    LOST_SEED,
    NOT_REPEATED,
    CurveSays,
    Family,
    curve_says,
    judge_family,
    may_not_repeat,
)
from pytest_distbench.records.case import BaselineEntry, Case
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import PEAK_MEMORY, Sample, metric_key, metric_name, without
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding


def judge_launches(
    terms: Terms,
    launches: Sequence[LaunchRecord],
    entry: BaselineEntry | None,
    *,
    case: Case,
    comparisons: int,
) -> list[Judgement]:
    stale = staleness(entry, case) if entry is not None else None
    stored = entry.metrics if entry is not None and not stale else {}
    changed = ", ".join(version_changes(entry.software, launches[0].software)) if entry is not None else ""
    same = entry is not None and not changed
    found = by_metric(launches)
    lost = lost_parts(terms, found, stored)
    for key, measurements in found.items():
        if not terms.wants(measurements[0].name):
            found[key] = [as_info(m) for m in measurements]
    under = Circumstances(
        tolerance=0.0,
        comparisons=comparisons,
        max_launches=terms.max_launches,
        same_software=same,
        busier_cores=busier_cores(entry, launches),
        crowding=crowding(entry, launches, cores=terms.cores),
        cores=terms.cores,
        disturbance=disturbance(entry.gpu_norm if entry is not None else None, launches),
    )
    tolerances = {
        key: terms.tolerance_of(m[0], entry.by_hand(key) if entry is not None else ()) for key, m in found.items()
    }
    judgements = [
        Judgement(add_witnesses(judgement.verdict, stored.get(key, ()), found[key]), judgement.is_open)
        for key, judgement in _judge_noise(under, tolerances, launches, found, stored).items()
    ]
    trainings = judge_trainings(terms, found, stored, same_software=same, can_repeat=can_repeat(launches), entry=entry)
    asks = len(launches) == 1 < terms.max_launches
    judgements = [Judgement(verdict, is_open=asks and may_not_repeat(verdict)) for verdict in trainings] + judgements
    judgements = as_lost(judgements, lost, found, stored)
    for i, (verdict, is_open) in enumerate(judgements):  # a series that has become much longer may read other lines now
        key = verdict.metric
        if verdict.kind == "improved" and key in stored and (why := more_than_stored(stored[key], found[key])):
            judgements[i] = Judgement(replace(verdict, code="other-definition", reason=why), is_open)
    known = entry.fingerprints if entry is not None and not stale else {}
    known = {key: known[key] for key in known.keys() - left_out(list(known), found, terms)}
    most = terms.max_launches if case.conditions.backend != "fake" else 1
    if (fingerprint := judge_fingerprint(terms, launches, known, changed=changed, most=most)) is not None:
        judgements.append(fingerprint)
    if stale:
        judgements = [
            Judgement(replace(j.verdict, code=stale.code, reason=stale.reason), is_open=False)
            if j.verdict.kind == "new"
            else j
            for j in judgements
        ]
    return judgements + judge_missing(terms, launches, found, stored)


def accepted_changes(terms: Terms, launches: Sequence[LaunchRecord], entry: BaselineEntry | None) -> dict[str, float]:
    return {
        key: terms.tolerance_of(m[0], entry.by_hand(key) if entry is not None else ())
        for key, m in by_metric(launches).items()
    }


def judge_missing(
    terms: Terms,
    launches: Sequence[LaunchRecord],
    found: Mapping[str, Sequence[Sample]],
    stored: Mapping[str, Sequence[Sample]],
) -> list[Judgement]:
    asked = [key for key in stored if metric_name(key) != PEAK_MEMORY]
    unseen = [key for key in asked if key not in found and terms.wants(metric_name(key))]
    reasons = left_out(unseen, found, terms)
    verdicts = [
        missing_verdict(key, stored[key], found=found, launches=launches, left_out=reasons.get(key, ""))
        for key in unseen
    ]
    return [Judgement(verdict, is_open=False) for verdict in verdicts]


def lost_parts(
    terms: Terms, found: Mapping[str, Sequence[Sample]], stored: Mapping[str, Sequence[Sample]]
) -> dict[str, str]:
    both = [key for key in found if key in stored and terms.wants(metric_name(key))]
    return {key: why for key in both if (why := lost_part(stored[key], found[key]))}


def as_lost(
    judgements: Sequence[Judgement],
    lost: Mapping[str, str],
    found: Mapping[str, Sequence[Sample]],
    stored: Mapping[str, Sequence[Sample]],
) -> list[Judgement]:
    """The judgements, but for the metrics of which something is lost; those of a training are told over its seeds."""
    of_verdict = {verdict: key for key in lost for verdict in (key, found[key][0].key_over_seeds)}
    return [
        Judgement(
            replace(j.verdict, code="not-measured", reason=lost[key], better=stored[key][0].better), is_open=False
        )
        if (key := of_verdict.get(j.verdict.metric, ""))
        else j
        for j in judgements
    ]


def _judge_noise(
    under: Circumstances,
    tolerances: Mapping[str, float],
    launches: Sequence[LaunchRecord],
    found: Mapping[str, Sequence[Sample]],
    stored: Mapping[str, Sequence[Sample]],
) -> dict[str, Judgement]:
    """Judge each metric that is not of a training, and the neighbours of a sweep together."""
    runs = find_runs(found[key][0] for key in stored if key in found)
    noise = typical_noise(stored)
    alone = {
        key: judge(
            measurements,
            stored.get(key, ()),
            dataclasses.replace(
                under,
                tolerance=tolerances[key],
                noise_floor=noise.get(measurements[0].name, 0.0),
                share=error_share(key, runs),
            ),
        )
        for key, measurements in found.items()
        if not METRIC_KINDS[measurements[0].better].is_of_training
    }
    together: dict[Run, list[Sample]] = {}
    for launch in launches:
        for run, measurement in runs_of_launch(launch, runs):
            together.setdefault(run, []).append(measurement)
    known = {run: stored_together([stored[key] for key in run.keys]) for run in runs if run in together}
    noise = typical_noise({run.key: metric for run, metric in known.items() if metric})
    of_runs = {
        run: judge(
            together[run],
            metric,
            dataclasses.replace(
                under,
                tolerance=max(tolerances[key] for key in run.keys),
                noise_floor=noise.get(metric_name(run.key), 0.0),
                share=run.share,
            ),
        )
        for run, metric in known.items()
    }
    return support(alone, of_runs, tolerances=tolerances, can_ask=len(launches) < under.max_launches)


def judge_fingerprint(
    terms: Terms, launches: Sequence[LaunchRecord], stored: Mapping[str, Fingerprint], *, changed: str, most: int
) -> Judgement | None:
    current = fingerprints_of(launches)
    if not current and not stored:
        return None
    verdict = judge_fingerprints(stored, current, launches=len(launches), drift=changed)
    if not terms.wants(METRIC):
        return Judgement(replace(verdict, code="not-judged", better="info"), is_open=False)
    is_doubtful = verdict.code == "communication" and needs_more(stored, current, launches=len(launches))
    return Judgement(verdict, is_open=is_doubtful and len(launches) < most)


def add_witnesses(verdict: Finding, stored: Sequence[Sample], measurements: Sequence[Sample]) -> Finding:
    """With the quieter witnesses of the clock beside it, before and now."""
    names = measurements[0].companions if measurements else {}
    now = {name: statistics.median(m.companions.get(name, 0.0) for m in measurements) for name in names}
    then = stored[0].companions if stored else {}
    both = {name: (then[name], value) for name, value in now.items() if name in then}
    return replace(verdict, companions=both) if both else verdict


def judge_trainings(
    terms: Terms,
    found: Mapping[str, list[Sample]],
    stored: Mapping[str, Sequence[Sample]],
    *,
    same_software: bool,
    can_repeat: bool = True,
    entry: BaselineEntry | None = None,
) -> list[Finding]:
    """One verdict per convergence metric, over its seeds; curves first, as they tell whether the arithmetic changed."""
    families: dict[tuple[bool, str, str], dict[str, list[Sample]]] = {}
    for key, measurements in found.items():
        first = measurements[0]
        if METRIC_KINDS[first.better].is_of_training:
            training = metric_key("", without(first.at, "seed"))
            families.setdefault((first.better != "curve", training, first.name), {})[key] = measurements
    verdicts = []
    curves: dict[str, CurveSays] = {}
    without_seed: set[str] = set()
    for (_, training, name), current in sorted(families.items(), key=lambda item: item[0][0]):
        known = {key: stored[key] for key in current if key in stored}
        by_hand = [entry.tolerances.get(key) for key in known] if entry is not None else []
        family = Family(
            current=current,
            stored=known,
            same_software=same_software,
            curve=curves.get(training, "nothing"),
            can_repeat=can_repeat,
            lost_its_seed=training in without_seed,
            tolerance=terms.own_tolerance_of(name, [*by_hand, entry.tolerance if entry is not None else None]),
        )
        verdict = judge_family(family)
        if (says := curve_says(verdict)) is not None:
            curves[training] = max(says, curves.get(training, says), key=get_args(CurveSays).index)
        if verdict.reason.startswith((LOST_SEED, NOT_REPEATED)):
            without_seed.add(training)
        verdicts.append(verdict)
    return verdicts


def can_repeat(launches: Sequence[LaunchRecord]) -> bool:
    """Whether a training's digits can be the same each time: on CUDA only where deterministic algorithms are on."""
    return all("cuda" not in launch.software or launch.software.get("deterministic") == "on" for launch in launches)


def by_metric(launches: Sequence[LaunchRecord]) -> dict[str, list[Sample]]:
    """Metric key -> its measurement in each launch; one that a full launch lacks counts as without value."""
    found: dict[str, list[Sample]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            found.setdefault(measurement.key, []).append(measurement)
    full = sum(not launch.only for launch in launches)
    for key, measurements in found.items():
        found[key] = measurements + [replace(measurements[0], value=None)] * (full - len(measurements))
    return found


def busier_cores(entry: BaselineEntry | None, launches: Sequence[LaunchRecord]) -> float:
    now = [f.foreign_cores for f in launches if f.foreign_cores is not None]
    if entry is None or entry.foreign_cores is None or not now:
        return 0.0
    return statistics.median(now) - entry.foreign_cores


def crowding(entry: BaselineEntry | None, launches: Sequence[LaunchRecord], *, cores: int) -> float | None:
    """How many times as long other processes made the median launch take, over what they did at the baseline.

    Where they wanted no more than then, it was not they: helpers that the code starts wait, too, and so does a
    container that has a share of the CPUs.
    """
    now = [launch.crowding for launch in launches if launch.crowding is not None]
    if entry is None or entry.crowding is None or entry.foreign_wanted is None or not now:
        return None
    more = statistics.median(launch.foreign_wanted or 0.0 for launch in launches) - entry.foreign_wanted
    return statistics.median(now) / entry.crowding if more > BUSIER_SHARE * cores else 1.0
