"""From the pairs of launches of a case to one verdict per metric. The rule itself is in ``pairs``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from pytest_distbench.judging.case import (
    add_witnesses,
    as_lost,
    can_repeat,
    judge_fingerprint,
    judge_missing,
    judge_trainings,
    lost_parts,
)
from pytest_distbench.judging.comparable import version_changes
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.judgement import Judgement
from pytest_distbench.judging.metric import as_info
from pytest_distbench.judging.neighbours import (
    Run,
    error_share,
    find_runs,
    runs_of_launch,
    support,
)
from pytest_distbench.judging.pair_rule import PairCircumstances, judge_pairs
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.verdict import Verdict


def judge_paired(
    terms: Terms,
    case: Case,
    references: Sequence[LaunchRecord],
    launches: Sequence[LaunchRecord],
    *,
    tolerance_of: Callable[[Measurement], float],
    looks: tuple[int, ...],
    cases: int,
    spending: int = 2,
    itself: tuple[Sequence[LaunchRecord], Sequence[LaunchRecord]] = ((), ()),
) -> list[Judgement]:
    """Judge every metric that either side recorded: times by pairs, trainings, fingerprints as against a baseline.

    See :class:`~pytest_distbench.judging.pair_rule.PairCircumstances` and
    :func:`~pytest_distbench.judging.pair_rule.judge_pairs` for ``spending`` and ``itself``.
    """
    null = _by_metric(terms, *itself)
    changed = ", ".join(version_changes(references[0].software, launches[0].software))
    found = _by_metric(terms, references, launches)
    pairs = {key: sides for key, sides in found.items() if not METRIC_KINDS[_first(sides).better].is_of_training}
    noisy = sum(_first(found).is_noisy for found in pairs.values())
    tolerances = {key: tolerance_of(_first(sides)) for key, sides in pairs.items()}
    under = PairCircumstances(
        tolerance=0.0,
        comparisons=cases * max(1, noisy),
        looks=looks,
        same_software=not changed,
        spending=spending,
    )
    stored = make_entry(case, references, references[0].software)
    here = {key: [b for _, b in sides if b is not None] for key, sides in found.items()}
    trainings = {key: measurements for key, measurements in here.items() if measurements}
    verdicts = judge_trainings(
        terms, trainings, stored.metrics, same_software=not changed, can_repeat=can_repeat([*references, *launches])
    )
    judgements = [Judgement(verdict, is_open=False) for verdict in verdicts]
    gone = {key: m for key, m in stored.metrics.items() if key not in trainings and key not in pairs}
    judgements += judge_missing(terms, launches, trainings, gone)
    runs = find_runs(map(_first, pairs.values()))
    alone = {
        key: judge_pairs(
            sides,
            dataclasses.replace(
                under,
                tolerance=tolerances[key],
                share=error_share(key, runs),
            ),
            null.get(key, ()),
        )
        for key, sides in pairs.items()
    }
    of_itself = _of_runs(runs, *itself)
    of_runs = {
        run: judge_pairs(
            sides,
            dataclasses.replace(under, tolerance=min(tolerances[key] for key in run.keys), share=run.share),
            of_itself.get(run, ()),
        )
        for run, sides in _of_runs(runs, references, launches).items()
    }
    can_ask = len(launches) < looks[-1]
    for key, judgement in support(alone, of_runs, tolerances=tolerances, can_ask=can_ask).items():
        verdict = add_witnesses(judgement.verdict, stored.metrics.get(key), here[key])
        judgements.append(judgement._replace(verdict=verdict))
    judgements = as_lost(judgements, lost_parts(terms, trainings, stored.metrics), trainings, stored.metrics)
    fingerprint = judge_fingerprint(terms, launches, stored.fingerprints, changed=changed, most=looks[-1])
    return judgements + ([fingerprint] if fingerprint is not None else [])


def not_there(terms: Terms, launch: LaunchRecord, reason: str) -> list[Verdict]:
    """The verdicts on a test that the reference does not have."""
    under = PairCircumstances(tolerance=0.0, comparisons=1, looks=(1,))
    verdicts = [judge_pairs([(None, _as_wanted(terms, m))], under).verdict for m in launch.measurements]
    return [v if not v.is_judged else replace(v, reason=reason) for v in verdicts]


def _by_metric(
    terms: Terms, references: Sequence[LaunchRecord], launches: Sequence[LaunchRecord]
) -> dict[str, list[tuple[Measurement | None, Measurement | None]]]:
    """Metric key -> per pair what the reference and this tree measured; pairs started for other metrics left out."""
    found: dict[str, list[tuple[Measurement | None, Measurement | None]]] = {}
    sides = [(_by_key(terms, a), _by_key(terms, b)) for a, b in zip(references, launches, strict=True)]
    for key in dict.fromkeys(key for there, here in sides for key in (*here, *there)):
        found[key] = [
            (there.get(key), here.get(key))
            for (there, here), launch in zip(sides, launches, strict=True)
            if not launch.only or key in launch.only
        ]
    return found


def _of_runs(
    runs: Sequence[Run], references: Sequence[LaunchRecord], launches: Sequence[LaunchRecord]
) -> dict[Run, list[tuple[Measurement | None, Measurement | None]]]:
    """Run of neighbours -> per pair of launches what both sides measured of it as one, where both did."""
    found: dict[Run, list[tuple[Measurement | None, Measurement | None]]] = {}
    for there, here in zip(references, launches, strict=True):
        then = dict(runs_of_launch(there, runs))
        for run, now in runs_of_launch(here, runs):
            if run in then:
                found.setdefault(run, []).append((then[run], now))
    return {run: found[run] for run in runs if run in found}


def _by_key(terms: Terms, launch: LaunchRecord) -> dict[str, Measurement]:
    return {m.key: _as_wanted(terms, m) for m in launch.measurements}


def _first(pairs: Sequence[tuple[Measurement | None, Measurement | None]]) -> Measurement:
    return next(m for pair in pairs for m in reversed(pair) if m is not None)


def _as_wanted(terms: Terms, measurement: Measurement) -> Measurement:
    """A metric that the test does not want judged is for information."""
    return measurement if terms.wants(measurement.name) else as_info(measurement)
