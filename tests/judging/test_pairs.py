"""The decision rule for launches of two revisions in alternation, and the verdicts of a case by it."""

from __future__ import annotations

import math

import pytest
import scipy  # which loads its stats when they are first used: a second
from support.cases import ON_TWO
from support.metrics import judge_pairs, metric, passed

from pytest_distbench.judging.case import Pairs, compare
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import FIRST_LOOK, LAST_LOOK, Circumstances, looks, power, smallest_slowdown
from pytest_distbench.records.case import Case
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

QUIET = (1.00, 1.01, 0.99, 1.005, 0.995)


def rule(**changes: object) -> Circumstances:
    return Circumstances(**({"tolerance": 0.05, "comparisons": 2, "looks": (5, 10, 20)} | changes))  # type: ignore[arg-type]


def judged(
    ratios: list[float], better: Better = "lower", reference: float | None = 2.0, **changes: object
) -> tuple[Finding, bool]:
    pairs = [(metric(reference, better), metric(None if reference is None else reference * r, better)) for r in ratios]
    found = judge_pairs(pairs, rule(**changes))
    return found, found.is_open


def test_pairs_are_judged_from_three_on_at_each_look() -> None:
    assert looks(FIRST_LOOK, LAST_LOOK) == (5, 7, 10, 14, 20, 28)
    assert looks(5, 12) == (5, 7, 10, 12)
    assert looks(8, 4) == (8,)

    assert looks(1, 1) == (3,)

    verdict, is_open = judged(list(QUIET))
    assert (verdict.kind, is_open, verdict.launches) == ("unchanged", False, 5)

    verdict, is_open = judged([1.1 * r for r in QUIET])
    assert (verdict.kind, is_open) == ("regressed", False)
    assert verdict.ratio == pytest.approx(1.1, rel=1e-3)
    assert verdict.threshold == pytest.approx(0.05)

    assert judged([0.9 * r for r in QUIET], "higher")[0].kind == "regressed"
    assert judged([0.9 * r for r in QUIET], "lower")[0].kind == "improved"

    assert judged([1.02 * r for r in QUIET])[0].kind == "unchanged"
    assert judged([1.02 * r for r in QUIET * 4], tolerance=0.005)[0].kind == "regressed"

    ratios = [0.7, 1.5, 0.8, 1.4, 1.0]
    verdict, is_open = judged(ratios * 4)
    assert judged(ratios)[1]
    assert (verdict.kind, is_open) == ("inconclusive", False)
    assert verdict.mde is not None
    assert f"minimum detectable slowdown +{verdict.mde:.0%}" in verdict.reason


def test_what_one_side_lacks_is_missing_lost_or_incomparable() -> None:
    assert judge_pairs([(metric(2.0), metric(None))] * 5, rule()).kind == "regressed"

    assert judged([1.0] * 5, reference=None)[0].kind == "inconclusive"

    verdict = judge_pairs([(metric(1.0), replace(metric(1.0), unit="ms"))] * 5, rule())
    assert (verdict.kind, verdict.reason) == ("inconclusive", "the unit was 's', now it is 'ms'")

    assert judge_pairs([(None, metric(1.0))] * 5, rule()).kind == "new"


def test_exact_numbers_are_compared_at_once_and_under_another_python_only_if_equal() -> None:
    assert judged([1.0], "exact") == (judged([1.0], "exact")[0], False)
    assert judged([1.0], "exact")[0].kind == "unchanged"
    assert judged([1.0 + 1e-12], "exact")[0].kind == "changed"

    assert judged([1.5], "exact", same_software=False)[0].kind == "inconclusive"
    assert judged([1.0], "exact", same_software=False)[0].kind == "unchanged"


def test_power_is_that_of_the_noncentral_t_between_no_noise_and_hopeless_noise() -> None:
    # Ten pairs, noise 5 %, slowdown 8 %, against SciPy
    one_look = rule(looks=(10,), tolerance=0.0)
    shift = math.log1p(0.08) / (0.05 / math.sqrt(10))
    expected = scipy.stats.nct.sf(scipy.stats.t.ppf(1 - one_look.alpha_of(10), 9), 9, shift)
    assert power(0.08, 0.05, one_look) == pytest.approx(expected, abs=0.002)

    assert smallest_slowdown(0.0, rule()) == pytest.approx(0.05, abs=1e-6)

    assert smallest_slowdown(100.0, rule()) == math.inf

    shares = [rule(comparisons=10).alpha_of(look) for look in rule().looks]
    assert sum(shares) == pytest.approx(0.02 / 10)
    assert shares == sorted(shares)


SOFTWARE = {"python": "3.11", "torch": "2.13.0"}
CASE = Case(test="test_a.py::test_b", id="ws2", conditions=ON_TWO, device="cpu")
TERMS = Terms(default_tolerance=0.1, max_launches=10, cores=2)


def number(name: str, value: float, better: Better = "lower", **more: object) -> Sample:
    return Sample(name=name, value=value, better=better, **{"unit": "s"} | more)  # type: ignore[arg-type]


def curve(*losses: float) -> Sample:
    return number("loss_curve", losses[-1], "curve", values=list(losses), at={"seed": 0})


def launches(*measurements: Sample, bytes_sent: int = 4096) -> list[LaunchRecord]:
    prints = {"step": Fingerprint(collectives={"all": [Collective("all_reduce", "float32", bytes_sent, "default", 2)]})}
    return [passed(*measurements, index=i, fingerprints=prints, software=SOFTWARE) for i in range(5)]


def judged_of_pairs(references: list[LaunchRecord], current: list[LaunchRecord]) -> dict[str, Finding]:
    paired = Pairs(baseline=references, tolerance_of=lambda metric: 0.05, looks=(5, 10))
    return {f.metric: f for f in compare(TERMS, CASE, current, paired=paired, comparisons=1)}


@pytest.mark.parametrize("better", METRIC_KINDS)
def test_a_test_that_the_other_revision_lacks_is_new_whatever_it_records(better: Better) -> None:
    [launch, *_] = launches(number("w", 1.0, better))
    launch = replace(launch, fingerprints={})
    absent = "no-baseline", "the test does not exist in HEAD"
    [verdict] = compare(TERMS, CASE, [launch], comparisons=1, absent=absent)

    wanted = ("new", "the test does not exist in HEAD") if verdict.is_judged else ("unchanged", "recorded, not judged")
    assert (verdict.kind, verdict.reason) == wanted


def test_a_training_and_a_fingerprint_are_compared_in_pairs_too() -> None:
    references = launches(curve(2.003, 1.507, 1.009))
    assert judged_of_pairs(references, launches(curve(2.003, 1.507, 1.009)))["loss_curve[seed=0]"].kind == "unchanged"
    assert judged_of_pairs(references, launches(curve(2.003, 1.6, 1.2)))["loss_curve[seed=0]"].kind == "changed"

    found = judged_of_pairs(launches(number("step", 1.0)), launches(number("step", 1.0), bytes_sent=8192))
    assert found["fingerprint"].kind == "changed"


def test_a_metric_that_the_other_revision_alone_records_is_missing() -> None:
    references = launches(number("step", 1.0), number("gone", 1.0), curve(2.0, 1.0))
    found = judged_of_pairs(references, launches(number("step", 1.0)))

    kinds = {"step": "unchanged", "gone": "missing", "loss_curve[seed=0]": "missing", "fingerprint": "unchanged"}
    assert {name: v.kind for name, v in found.items()} == kinds


def test_a_finding_has_the_secondary_signals_of_both_sides() -> None:
    then, now = (launches(number("step", v, companions={"cpu_s": s})) for v, s in ((1.0, 0.5), (2.0, 1.5)))
    found = judged_of_pairs(then, now)

    assert found["step"].kind == "regressed"
    assert found["step"].companions == {"cpu_s": (0.5, 1.5)}


SIZE = number("size", 100.0, unit="B")


@pytest.mark.parametrize(
    ("changed", "metric", "kind"),
    [
        (replace(SIZE, value=200.0, better="info"), "size", "missing"),
        (replace(SIZE, value=200.0, better="higher"), "size", "missing"),
        (replace(SIZE, value=200.0, unit="kB"), "size", "missing"),
        (replace(SIZE, value=200.0, name="bytes"), "size", "missing"),
        (replace(SIZE, value=200.0, at={"of": "weights"}), "size", "missing"),
        (replace(curve(2.0, 1.9, 1.8), better="info"), "loss_curve[seed=0]", "missing"),
    ],
    ids=["info", "kind", "unit", "name", "point", "curve as info"],
)
def test_a_metric_that_the_candidate_talks_down_fails_under_pairs(changed: Sample, metric: str, kind: str) -> None:
    references = launches(curve(2.0, 1.5, 1.0) if changed.name == "loss_curve" else SIZE)
    found = judged_of_pairs(references, launches(changed))[metric]

    assert (found.kind, found.is_failure) == (kind, True)


@pytest.mark.parametrize(("is_judge", "code"), [(False, "other-definition"), (True, "not-measured")])
@pytest.mark.parametrize("better", ["lower", "curve"])
def test_another_target_is_no_way_out_where_the_base_judges(is_judge: bool, code: str, better: Better) -> None:
    of_target = number("steps_to_error", 3.0, better, values=[3.0, 2.0, 1.0], identity={"target": 0.05})
    loosened = replace(of_target, identity={"target": 5.0})
    paired = Pairs(
        baseline=launches(of_target), tolerance_of=lambda metric: 0.05, looks=(5, 10), is_judge=is_judge
    )  # fmt: skip
    found = {f.name: f for f in compare(TERMS, CASE, launches(loosened), paired=paired, comparisons=1)}

    assert found["steps_to_error"].code == code
    assert found["steps_to_error"].reason.startswith("target was 0.05, now 5.0")
