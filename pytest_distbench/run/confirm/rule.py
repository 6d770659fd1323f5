"""Verdicts of a confirmation: what interleaved launches say of a suspicious stored comparison. Pure, no I/O.

Three launches are interleaved: of this tree, of the revision that recorded the baseline, and of that revision once
more. Of timings the fast sides count, as in the stored comparison. This tree is compared with both launches of the
revision (their geometric mean) at the tolerance that the stored comparison had; how far the revision differs from
itself is the noise. What that does not call slower is compared by all of its iterations too, at the tolerance of
:data:`~pytest_distbench.judging.thresholds.LEAST_OF_ALL`. Then a timing

- *regressed* where this tree is slower than the revision, and by more than
  :data:`~pytest_distbench.judging.thresholds.VETO` times what the revision differs from itself: a machine on which that
  is much decides nothing, whatever the statistics of the pairs say;
- is slower by the *machine* where it is not, and the interleaved launches, which are later, are beyond the stored
  numbers by their own rule (``thresholds``): noise is no slower machine. Where pytest itself evaluated other code than
  the revision has, both sides had it, and A/B clears it of nothing: it *regressed* where the stored numbers leave no
  question, and is *inconclusive* else;
- *improved* where this tree is faster;
- is *unchanged* where it is neither;
- is *inconclusive* where the last pair leaves it open.

What regressed is measured again in other process trees, with at most as many pairs: what one tree, or the place of one
checkout, makes slow does not recur (:func:`measured_again`).

Where the revision is this tree, it is launched again alone, and the same two answers are left: *machine* and
*unchanged*.

Stored digits of a training and this run's lie a commit and an environment apart. The recorded commit, launched here and
now, says which of the two changed them:

- it computes what this tree computes: the *environment* changed the digits, and nothing is wrong with the code;
- it repeats its own stored digits, and this tree computes others: the *code* did;
- neither: both did; and a commit that does not repeat itself here says nothing.

Within the limit that is all that is asked. Beyond it this tree is judged against what that commit computes here,
whatever is stored. Where it cannot be launched here, what the stored numbers say stands. What else was judged exactly
(fingerprints, sizes, whatever is lost or beyond a bound) stays as it was judged, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
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

RECURS = 0.5  # of a slowdown, as a logarithm, so much has to be seen again in other process trees

_UNDECIDED = ("new", "missing")  # verdicts on pairs that say nothing of how fast either side is
_BY_THE_MACHINE = "the machine or its software is slower, not the code; --distbench-update records new baselines"


Sides = tuple[Sequence[LaunchRecord], Sequence[LaunchRecord], Sequence[LaunchRecord]]
"""Launches of this tree, of the revision, and of it once more; those of one index were interleaved."""

Evaluated = tuple[Sequence[str], bool]
"""Files that pytest itself evaluates, so that both sides have them, and that differ from the revision; and whether they
are the test's module, a conftest.py, a plugin or the ini file, and not what those import."""


@dataclass(frozen=True, kw_only=True)
class StoredComparison:
    """What is stored of a suspicious case, and the verdicts on it.

    Attributes:
        entry: that the stored comparison was made with; None: nothing is stored.
        before: the entry of the revision, where a later one is stored.
        tolerances: by metric, as fractions.
        are_timings: whether timings are confirmed; else they stay as judged, and a launch of each side is enough.
    """

    verdicts: Sequence[Finding]
    launches: Sequence[LaunchRecord] = ()
    entry: BaselineEntry | None = None
    before: BaselineEntry | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)
    comparisons: int = 1
    are_timings: bool = True

    def later(
        self, terms: Terms, case: Case, launches: Sequence[LaunchRecord], *, is_last: bool = True
    ) -> dict[str, Finding]:
        """What the stored numbers say of the clocks of launches, by their own rule."""
        terms = replaced(terms, max_launches=len(launches) + (not is_last))
        found = compare(terms, case, launches, self.entry, comparisons=self.comparisons)
        return {finding.metric: finding for finding in found if is_timing(finding, finding.unit)}

    @property
    def of_pairs(self) -> dict[str, float]:
        """The tolerances of pairs: what later numbers were accepted with comes on top."""
        found = dict(self.tolerances)
        for key, value in self.tolerances.items():
            now, then = (e.metrics.get(key, []) if e is not None else [] for e in (self.entry, self.before))
            if now and then and all(m.value is not None and m.value > 0 for m in [*now, *then]):
                timed = are_timed(now) and are_timed(then)
                means = [statistics.fmean(fast_logs(metric, timed=timed)) for metric in (now, then)]
                worse_by = max(0.0, METRIC_KINDS[now[0].better].sign * (means[0] - means[1]))
                found[key] = math.expm1(math.log1p(value) + worse_by)
        return found


def can_be_confirmed(verdicts: Sequence[Finding]) -> bool:
    """Whether nothing speaks against a case but timings and digits of a training: then A/B can decide it."""
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
    """Judge a case again whose stored comparison was suspicious."""
    stored = known.verdicts
    if known.entry is not None:
        there, here = [*sides[1], *sides[2]], [*known.launches, *sides[0]]
        stored = confirm_digits(terms, case, stored, here, there, known.entry, revision=revision)
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
        elif paired is None or not _tells(paired):
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
    """Judge the timings of a case by its interleaved launches alone, by metric."""
    beside = Pairs(
        baseline=sides[1],
        controls=sides[2],
        looks=LOOKS,
        spending=SPENDING,
        tolerance_of=lambda metric: tolerances.get(metric.key, terms.default_tolerance),
        ab=f"interleaved A/B with {name}{of}",
    )
    found = compare(terms, case, sides[0], paired=beside, comparisons=cases)
    return {finding.metric: finding for finding in found if is_timing(finding, finding.unit)}


def measured_again(verdicts: Sequence[Finding], found: Mapping[str, Finding]) -> list[Finding]:
    """The verdicts, those on timings that regressed by what other process trees say of them.

    A slowdown recurs where it is red by the same rule, or, by all pairs, at least half as large: those that decided
    the first time were the loudest there were.
    """
    judged = []
    for v in verdicts:
        again = found.get(v.metric)
        if again is None or not v.row.may_be_confirmed or not _tells(again):
            judged.append(v)
            continue
        change = format_change(again.ratio or 1.0)
        if again.kind == "regressed" or (worse_by(again) >= RECURS * worse_by(v)):
            told = f"{v.reason}; confirmed in new processes: {change} over {again.launches} pairs"
            judged.append(replace(v, reason=told, is_open=again.is_open))
        else:
            first = f"slower in one set of processes ({format_change(v.ratio or 1.0)} over {v.launches} pairs)"
            reason = f"{first}, not in a second one ({change} over {again.launches})"
            judged.append(replace(v, code="ab-disagrees", reason=reason, is_open=again.is_open))
    return judged


def worse_by(finding: Finding) -> float:
    """Logarithm of the change, towards worse positive; 0 where there is none."""
    return METRIC_KINDS[finding.better].sign * math.log(finding.ratio) if finding.ratio and finding.ratio > 0 else 0.0


def _tells(paired: Finding) -> bool:
    """Whether a verdict on pairs says how fast one side is against the other."""
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
    """The verdicts, those on clocks with the shares that code and software have in what changed.

    ``code`` is, by metric, this tree over the revision, both under today's software; ``total`` the same, the revision
    under the software of its time.
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
    """The verdicts where nothing could be interleaved: what only timings say is not confirmed."""
    return [
        replace(v, code="not-confirmed", reason=f"{reason}{f' ({v.reason})' if v.reason else ''}")
        if is_timing(v, v.unit) and (v.row.may_be_confirmed or v.is_undecided)
        else v
        for v in stored
    ]


def is_beyond(later: Finding | None) -> bool:
    """Whether further launches, some time later, are beyond the stored numbers, too."""
    return later is not None and later.row.may_be_confirmed


def not_slower(stored: Finding, later: Finding | None, reason: str) -> Finding:
    """The verdict where the code is known not to be slower; what is beyond in further launches, is the machine's."""
    is_same = stored.kind == "unchanged" and stored.code != "within-bound"
    gives_way = stored.row.may_be_confirmed or stored.is_undecided or is_same  # to what A/B says of the code
    if not is_timing(stored, stored.unit) or not gives_way or stored.ratio is None:
        return stored
    shown = replace(later or stored, bounds=stored.bounds, companions=stored.companions)
    if is_beyond(later):
        return replace(shown, code="slower-machine", reason=f"{reason}: {_BY_THE_MACHINE}")
    return replace(shown, code="cleared", reason=reason)


def _on_both_sides(v: Finding, acting: Evaluated, revision: str, reason: str, *, is_obvious: bool) -> Finding:
    """A timing that A/B does not clear: pytest evaluates other code than the revision has, for both sides."""
    names, are_of_the_test = acting
    which = f"{names[0]} and {len(names) - 1} more differ" if len(names) > 1 else f"{names[0]} differs"
    told = f"{reason}; but {which} from {revision}, and pytest runs it for both sides"
    if is_obvious and are_of_the_test:
        return replace(v, code="beyond-threshold", reason=f"{told}: so the comparison with the stored baseline counts")
    return replace(v, code="shared-code", reason=f"{told}: either that code or the machine is slower")


_RECORD = "--distbench-update records today's digits"


def are_asked_about(verdict: Finding) -> bool:
    """Whether the commit that recorded the baseline can say more of a verdict."""
    if not METRIC_KINDS[verdict.better].is_of_training or verdict.baseline is None:
        return False
    return verdict.row.may_be_confirmed or verdict.code in ("numerics", "one-seed")


def confirm_digits(
    terms: Terms,
    case: Case,
    stored: Sequence[Finding],
    launches: Sequence[LaunchRecord],
    references: Sequence[LaunchRecord],
    entry: BaselineEntry,
    *,
    revision: str,
) -> list[Finding]:
    """Judge the numbers of a training again, those that left the stored ones."""
    there = make_baseline(case, references, references[0].software, before=entry)
    if any(_differs(there.metrics.get(key, ())) and not _differs(known) for key, known in entry.metrics.items()):
        return list(stored)  # a commit that does not repeat itself any more clears nobody
    beside = _trainings(terms, launches, there)
    itself = _trainings(terms, references, entry)
    return [
        _attribute(v, beside.get(v.metric), itself.get(v.metric), revision) if are_asked_about(v) else v for v in stored
    ]


def _trainings(terms: Terms, launches: Sequence[LaunchRecord], entry: BaselineEntry) -> Mapping[str, Finding]:
    found = {key: m for key, m in by_metric(launches).items() if terms.wants(m[0].name)}
    return {
        v.metric: v
        for v in judge_trainings(terms, found, entry.metrics, launches=launches, same_software=True, entry=entry)
    }


def _attribute(stored: Finding, beside: Finding | None, itself: Finding | None, revision: str) -> Finding:
    if beside is None or not (_is_equal(beside) or beside.row.is_answer):
        return stored
    repeats = itself is not None and _is_equal(itself)
    if _is_equal(beside):
        told = f"{revision} computes the same here: the environment changed the digits, not the code; {_RECORD}"
        return replace(stored, code="numerics-environment", reason=f"{told}; {stored.reason}")
    who = (
        f"{revision} still computes its own digits here: the code changed them"
        if repeats
        else f"{revision} computes other digits here too: both code and environment changed them"
    )
    if stored.code == "numerics" and beside.code == "numerics":
        return replace(stored, reason=f"{stored.reason}; {who}")
    if beside.is_failure:
        return replace(beside, reason=f"{beside.reason}; compared with what {revision} computes here")
    told = f"compared with what {revision} computes here it is {beside.kind}"
    code = "numerics-environment" if stored.is_failure else beside.code
    return replace(stored, code=code, reason=f"{stored.reason}; {told}; {who}")


def _differs(metric: Sequence[Sample]) -> bool:
    if not metric or not METRIC_KINDS[metric[0].better].is_of_training:
        return False
    is_curve = METRIC_KINDS[metric[0].better].is_curve
    return any(m.value != metric[0].value or (is_curve and m.values != metric[0].values) for m in metric)


def _is_equal(verdict: Finding) -> bool:
    if METRIC_KINDS[verdict.better].is_curve:
        return (verdict.kind == "unchanged" or verdict.code == "flat-curve") and verdict.facts.get("deviation") == 0.0
    return verdict.kind == "unchanged" and verdict.code != "numerics" and verdict.current == verdict.baseline
