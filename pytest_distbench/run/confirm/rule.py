"""The rule of confirmation: verdicts from interleaved launches on a suspicious stored comparison. Pure, no I/O.

Three launches are interleaved: of the candidate, of the baseline commit, and of the baseline commit again. Timings are
compared by their lower quantiles, as in the stored comparison. The candidate is compared with the geometric mean of
both launches of the baseline commit, at the tolerance of the stored comparison; how far those two differ is the A/A
noise. A timing that is not slower by this is compared by all of its iterations too, at the tolerance of
:data:`~pytest_distbench.judging.thresholds.LEAST_OF_ALL`. Then a timing

- *regressed* if the candidate is slower than the threshold, and by more than
  :data:`~pytest_distbench.judging.thresholds.VETO` times the noise: a machine with much noise decides nothing, even if
  the statistics of the pairs do;
- is *environment* (``slower-machine``) if the candidate is not slower, but the interleaved launches, which are later,
  are beyond the stored numbers by the rule of stored comparisons (``thresholds``). If pytest itself evaluated code that
  differs from the baseline commit, both sides had it, and A/B cannot clear it: it *regressed* if the stored numbers
  alone decide so, and is *inconclusive* else;
- *improved* if the candidate is faster;
- is *unchanged* if it is neither;
- is *inconclusive* if the last pair does not decide.

Once a timing looks slower, further pairs are of new processes, each tree at the other's path, and all pairs are judged
together. A slowdown by one process tree, or by the path of one checkout, does not recur (:func:`crossed`).

If the candidate is the baseline commit, it is launched again alone, and two verdicts remain: *environment* and
*unchanged*.

The digits of a training may differ from stored ones by the code or by the environment. The baseline commit, launched
here and now, shows which:

- it computes the digits of the candidate: the *environment* changed them;
- it repeats its stored digits, and the candidate computes others: the *code* changed them;
- neither: both did. A commit that does not repeat its own digits here shows nothing.

Within the threshold this only explains. Beyond it the candidate is judged against the digits that the baseline commit
computes here. If that cannot be launched, the stored comparison counts. Other exact verdicts (fingerprints, sizes,
missing metrics, bounds) stay.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced

from pytest_distbench.judging.case import Pairs, compare, judge_trainings
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.screening import is_timing
from pytest_distbench.judging.terms import Terms, by_metric
from pytest_distbench.judging.thresholds import LOOKS, SPENDING, are_timed, fast_logs
from pytest_distbench.records.case import BaselineEntry, Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.units import format_change

RECURS = 0.5  # share of a slowdown's logarithm that has to recur in new processes; of the tolerance's, to try these

_UNDECIDED = ("new", "missing")  # verdicts on pairs that do not compare the speed of the sides
_BY_THE_MACHINE = "the machine or its software is slower, not the code; --distbench-update records new baselines"


Sides = tuple[Sequence[LaunchRecord], Sequence[LaunchRecord], Sequence[LaunchRecord]]
"""Launches of the candidate, of the baseline commit, and further ones of it; those of one index were interleaved."""

Evaluated = tuple[Sequence[str], bool]
"""Changed files that pytest itself evaluates, so that both sides have them; and whether they are the test's module, a
conftest.py, a plugin or the ini file, and not modules that those import."""


@dataclass(frozen=True, kw_only=True)
class StoredComparison:
    """The stored comparison of a suspicious case, and the verdicts on it.

    Attributes:
        baseline: the one of the stored comparison, or None.
        before: the baseline that the baseline commit has, if a later one is stored, or None.
        tolerances: metric -> fraction.
        comparisons: number in the whole run, over which the error rate is shared.
        are_timings: whether timings are confirmed; else they stay as judged, and a launch of each side is enough.
    """

    verdicts: Sequence[Finding]
    launches: Sequence[LaunchRecord] = ()
    baseline: BaselineEntry | None = None
    before: BaselineEntry | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)
    comparisons: int = 1
    are_timings: bool = True

    def later(
        self, terms: Terms, case: Case, launches: Sequence[LaunchRecord], *, is_last: bool = True
    ) -> dict[str, Finding]:
        """Compare the timings of further launches with the stored ones: metric -> finding."""
        terms = replaced(terms, max_launches=len(launches) + (not is_last))
        found = compare(terms, case, launches, self.baseline, comparisons=self.comparisons)
        return {finding.metric: finding for finding in found if is_timing(finding, finding.unit)}

    @property
    def of_pairs(self) -> dict[str, float]:
        """The tolerances of pairs; a change that was accepted after the baseline commit is added."""
        found = dict(self.tolerances)
        for key, value in self.tolerances.items():
            now, then = (e.metrics.get(key, []) if e is not None else [] for e in (self.baseline, self.before))
            if now and then and all(m.value is not None and m.value > 0 for m in [*now, *then]):
                timed = are_timed(now) and are_timed(then)
                means = [statistics.fmean(fast_logs(metric, timed=timed)) for metric in (now, then)]
                worse_by = max(0.0, METRIC_KINDS[now[0].better].sign * (means[0] - means[1]))
                found[key] = math.expm1(math.log1p(value) + worse_by)
        return found


def can_be_confirmed(verdicts: Sequence[Finding]) -> bool:
    """Whether only timings and digits of a training fail a case, which A/B can decide."""
    failed = [v for v in verdicts if v.is_failure]
    return all(v.row.may_be_confirmed and (is_timing(v, v.unit) or are_asked_about(v)) for v in failed)


def confirm(
    terms: Terms,
    case: Case,
    known: StoredComparison,
    sides: Sides,
    *,
    revision: str,
    cases: int,
    evaluated: Callable[[], Evaluated] = lambda: ((), True),
) -> list[Finding]:
    """Judge a suspicious case by interleaved launches of both sides."""
    stored = known.verdicts
    if known.baseline is not None:
        there, here = [*sides[1], *sides[2]], [*known.launches, *sides[0]]
        stored = confirm_digits(terms, case, stored, here, there, known.baseline, revision=revision)
    if not known.are_timings:
        return list(stored)
    of = " (an earlier baseline commit)" if known.before is not None else " (baseline commit)"
    found = judge_interleaved(terms, case, sides, tolerances=known.of_pairs, name=revision, of=of, cases=cases)
    later = known.later(terms, case, sides[0])
    judged = []
    for v in stored:
        paired = found.get(v.metric)
        if not is_timing(v, v.unit):
            judged.append(v)
        elif paired is None or not _compares_speed(paired):
            why = f": {paired.reason}" if paired is not None and paired.reason else ""
            judged += undecided([v], f"interleaved A/B with {revision} gave no comparable number{why}")
        elif paired.kind == "unchanged" or (paired.kind == "improved" and known.before is not None):
            finding = not_slower(v, later.get(v.metric), paired.reason)
            if finding.code == "cleared":
                finding = replace(paired, code="cleared", bounds=v.bounds, companions=v.companions)
            if finding.kind == "environment" and (acting := evaluated())[0]:
                is_obvious = is_beyond(known.later(terms, case, sides[0], is_last=False).get(v.metric))
                finding = _on_both_sides(v, acting, revision, paired.reason, is_obvious=is_obvious)
            judged.append(replace(finding, is_open=False))
        else:
            judged.append(replace(paired, bounds=v.bounds, companions=v.companions))
    return judged


def judge_interleaved(
    terms: Terms,
    case: Case,
    sides: Sides,
    *,
    tolerances: Mapping[str, float],
    name: str,
    of: str = "",
    cases: int,
) -> dict[str, Finding]:
    """Judge the timings of a case by its interleaved launches alone: metric -> finding."""
    pairs = Pairs(
        baseline=sides[1],
        controls=sides[2],
        looks=LOOKS,
        spending=SPENDING,
        tolerance_of=lambda metric: tolerances.get(metric.key, terms.default_tolerance),
        ab=f"interleaved A/B with {name}{of}",
    )
    found = compare(terms, case, sides[0], paired=pairs, comparisons=cases)
    return {finding.metric: finding for finding in found if is_timing(finding, finding.unit)}


def crossed(
    verdicts: Sequence[Finding],
    slower: Collection[str],
    first: Mapping[str, Finding],
    second: Mapping[str, Finding],
    *,
    is_last: bool,
) -> list[Finding]:
    """Judge whether timings that regressed over all pairs did so in both sets of processes; the other verdicts stay.

    A slowdown is in both if each set regressed, or is slower by at least half of it. One that is not checked is open,
    and one that is not in both as long as the second set has fewer pairs, or is open itself.

    Args:
        verdicts: by the pairs of both sets.
        slower: metrics that regressed by them.
        first, second: metric -> finding by the pairs of each set; ``second`` is empty while it has fewer than two.
    """
    judged = []
    for v in verdicts:
        before, again = first.get(v.metric), second.get(v.metric)
        is_red = v.row.may_be_confirmed and v.metric in slower
        if before is None or not _compares_speed(before) or not (is_red or before.kind == "regressed"):
            judged.append(v)
        elif again is None or not _compares_speed(again):
            judged.append(replace(v, is_open=True) if is_red else v)
        elif all(found.kind == "regressed" or worse_by(found) >= RECURS * worse_by(v) for found in (before, again)):
            change = f"{format_change(again.ratio or 1.0)} over {again.launches} pairs"
            judged.append(replace(v, reason=f"{v.reason}; confirmed in new processes: {change}") if is_red else v)
        elif is_red or v.is_undecided:
            pair = sorted((before, again), key=worse_by, reverse=True)
            here, there = (f"{format_change(f.ratio or 1.0)} over {f.launches}" for f in pair)
            reason = f"slower in one set of processes ({here} pairs), not in another one ({there})"
            is_open = not is_last and (again.launches < before.launches or again.is_open)
            judged.append(replace(v, code="ab-disagrees", reason=reason, is_open=is_open))
        else:
            judged.append(v)
    return judged


def worse_by(finding: Finding) -> float:
    """Logarithm of the change, positive if worse; 0 without a ratio."""
    return METRIC_KINDS[finding.better].sign * math.log(finding.ratio) if finding.ratio and finding.ratio > 0 else 0.0


def _compares_speed(paired: Finding) -> bool:
    return paired.kind not in _UNDECIDED and paired.row.is_comparable


def ratios(then: Sequence[LaunchRecord], now: Sequence[LaunchRecord]) -> dict[str, float]:
    logs: dict[str, list[float]] = {}
    for before, after in zip(then, now, strict=True):
        known = {m.key: m.value for m in before.measurements if is_timing(m, m.unit)}
        for m in after.measurements:
            if (value := known.get(m.key)) and value > 0 and m.value is not None and m.value > 0:
                logs.setdefault(m.key, []).append(math.log(m.value / value))
    return {key: math.exp(statistics.fmean(found)) for key, found in logs.items()}


def split_change(
    verdicts: Sequence[Finding], *, code: Mapping[str, float], total: Mapping[str, float], software: str
) -> list[Finding]:
    """Add the shares of code and software in a change to the verdicts on timings.

    Args:
        code: metric -> candidate / baseline commit, both under today's software.
        total: metric -> candidate / baseline commit, the latter under the software of its time.
    """

    def split(verdict: Finding) -> Finding:
        is_slower = verdict.row.may_be_confirmed or verdict.kind == "environment"
        if not is_slower or verdict.metric not in code.keys() & total.keys():
            return verdict
        mine, both = code[verdict.metric], total[verdict.metric]
        shares = f"code {format_change(mine)}, {software} {format_change(both / mine)}"
        return replace(verdict, reason=f"{verdict.reason}; of {format_change(both)} by interleaved A/B: {shares}")

    return [split(verdict) for verdict in verdicts]


def undecided(stored: Sequence[Finding], reason: str) -> list[Finding]:
    """The verdicts if nothing could be interleaved: those on timings are not confirmed."""
    return [
        replace(v, code="not-confirmed", reason=f"{reason}{f' ({v.reason})' if v.reason else ''}")
        if is_timing(v, v.unit) and (v.row.may_be_confirmed or v.is_undecided)
        else v
        for v in stored
    ]


def is_beyond(later: Finding | None) -> bool:
    """Whether further launches, some time later, are beyond the threshold of the stored comparison, too."""
    return later is not None and later.row.may_be_confirmed


def not_slower(stored: Finding, later: Finding | None, reason: str) -> Finding:
    """The verdict on a timing whose code is not slower; the machine is, if ``later`` is beyond the threshold."""
    is_same = stored.kind == "unchanged" and stored.code != "within-bound"
    gives_way = stored.row.may_be_confirmed or stored.is_undecided or is_same  # to A/B
    if not is_timing(stored, stored.unit) or not gives_way or stored.ratio is None:
        return stored
    shown = replace(later or stored, bounds=stored.bounds, companions=stored.companions)
    if is_beyond(later):
        return replace(shown, code="slower-machine", reason=f"{reason}: {_BY_THE_MACHINE}")
    return replace(shown, code="cleared", reason=reason)


def _on_both_sides(v: Finding, acting: Evaluated, revision: str, reason: str, *, is_obvious: bool) -> Finding:
    names, are_of_the_test = acting
    which = f"{names[0]} and {len(names) - 1} more differ" if len(names) > 1 else f"{names[0]} differs"
    why = f"{reason}; but {which} from {revision}, and pytest runs it for both sides"
    if is_obvious and are_of_the_test:
        return replace(v, code="beyond-threshold", reason=f"{why}: so the comparison with the stored baseline counts")
    return replace(v, code="shared-code", reason=f"{why}: either that code or the machine is slower")


_RECORD = "--distbench-update records today's digits"


def are_asked_about(verdict: Finding) -> bool:
    """Whether launches of the baseline commit can explain a verdict on digits of a training."""
    if not METRIC_KINDS[verdict.better].is_of_training or verdict.baseline is None:
        return False
    return verdict.row.may_be_confirmed or verdict.code in ("numerics", "one-seed")


def confirm_digits(
    terms: Terms,
    case: Case,
    stored: Sequence[Finding],
    launches: Sequence[LaunchRecord],
    others: Sequence[LaunchRecord],
    baseline: BaselineEntry,
    *,
    revision: str,
) -> list[Finding]:
    """Judge the digits of a training that differ from stored ones by launches of the baseline commit."""
    there = make_baseline(case, others, others[0].software, before=baseline)
    if any(_differs(there.metrics.get(key, ())) and not _differs(known) for key, known in baseline.metrics.items()):
        return list(stored)  # a commit that does not repeat its digits any more explains nothing
    paired = _trainings(terms, launches, there)
    itself = _trainings(terms, others, baseline)
    return [
        _attribute(v, paired.get(v.metric), itself.get(v.metric), revision) if are_asked_about(v) else v for v in stored
    ]


def _trainings(terms: Terms, launches: Sequence[LaunchRecord], baseline: BaselineEntry) -> Mapping[str, Finding]:
    found = {key: m for key, m in by_metric(launches).items() if terms.wants(m[0].name)}
    return {
        v.metric: v
        for v in judge_trainings(terms, found, baseline.metrics, launches=launches, same_software=True, entry=baseline)
    }


def _attribute(stored: Finding, paired: Finding | None, itself: Finding | None, revision: str) -> Finding:
    if paired is None or not (_is_equal(paired) or paired.row.is_answer):
        return stored
    repeats = itself is not None and _is_equal(itself)
    if _is_equal(paired):
        why = f"{revision} computes the same here: the environment changed the digits, not the code; {_RECORD}"
        return replace(stored, code="numerics-environment", reason=f"{why}; {stored.reason}")
    who = (
        f"{revision} still computes its own digits here: the code changed them"
        if repeats
        else f"{revision} computes other digits here too: both code and environment changed them"
    )
    if stored.code == "numerics" and paired.code == "numerics":
        return replace(stored, reason=f"{stored.reason}; {who}")
    if paired.is_failure:
        return replace(paired, reason=f"{paired.reason}; compared with what {revision} computes here")
    found = f"compared with what {revision} computes here it is {paired.kind}"
    code = "numerics-environment" if stored.is_failure else paired.code
    return replace(stored, code=code, reason=f"{stored.reason}; {found}; {who}")


def _differs(metric: Sequence[Sample]) -> bool:
    if not metric or not METRIC_KINDS[metric[0].better].is_of_training:
        return False
    is_curve = METRIC_KINDS[metric[0].better].is_curve
    return any(m.value != metric[0].value or (is_curve and m.values != metric[0].values) for m in metric)


def _is_equal(verdict: Finding) -> bool:
    if METRIC_KINDS[verdict.better].is_curve:
        return (verdict.kind == "unchanged" or verdict.code == "flat-curve") and verdict.facts.get("deviation") == 0.0
    return verdict.kind == "unchanged" and verdict.code != "numerics" and verdict.current == verdict.baseline
