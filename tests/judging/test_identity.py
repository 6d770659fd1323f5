"""Numbers of one name that measure different things are not compared, whatever their kind."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.cases import ON_TWO

from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.family import Family
from pytest_distbench.judging.identity import difference
from pytest_distbench.judging.metric import Rule, judge
from pytest_distbench.judging.pair_rule import PairRule, judge_pairs
from pytest_distbench.judging.training_rule import judge_family
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.case import Case
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Scalar

LOOP: dict[str, Scalar] = {"mode": "loop", "in_place": True}
PER_ITERATION: dict[str, Scalar] = {"mode": "per-iteration", "in_place": True}
REASON = "mode was per-iteration, now loop"


def measured(identity: Mapping[str, Scalar], *, better: str = "lower", unit: str = "s") -> Measurement:
    return Measurement(name="m", unit=unit, better=better, value=1.0, identity=dict(identity))


def stored(identity: Mapping[str, Scalar], *, better: str = "lower") -> BaselineMetric:
    return BaselineMetric(better=better, unit="s", launches=[1.0, 1.0], identity=dict(identity))


@pytest.mark.parametrize(
    ("then", "now", "why_not"),
    [
        (PER_ITERATION, PER_ITERATION, ""),
        (PER_ITERATION, LOOP, REASON),
        ({}, LOOP, ""),
        (PER_ITERATION, {}, ""),
        ({"cache": "hot"}, {"mode": "loop"}, ""),
        ({"every": 5}, {"every": 5.0}, ""),
        ({"a": 1, "b": 1}, {"b": 2, "a": 2}, "a was 1, now 2"),
    ],
)
def test_what_both_note_must_be_equal_and_what_one_notes_is_not_known_to_differ(
    then: Mapping[str, Scalar], now: Mapping[str, Scalar], why_not: str
) -> None:
    assert difference(stored(then), measured(now)) == why_not


def test_another_kind_or_unit_is_no_comparison_either() -> None:
    assert difference(stored({}), measured({}, better="exact")) == "the kind was 'lower', now it is 'exact'"
    assert difference(stored({}), measured({}, unit="ms")) == "the unit was 's', now it is 'ms'"


@pytest.mark.parametrize("better", ["lower", "higher", "exact"])
def test_a_clock_of_another_mode_is_incomparable(better: str) -> None:
    rule = Rule(tolerance=0.1, comparisons=1, max_launches=2)
    verdict = judge([measured(LOOP, better=better)] * 2, stored(PER_ITERATION, better=better), rule).verdict

    assert (verdict.kind, verdict.reason) == ("incomparable", REASON)


def test_so_it_is_beside_another_revision() -> None:
    rule = PairRule(tolerance=0.1, comparisons=1, looks=(5,))
    verdict, is_open = judge_pairs([(measured(PER_ITERATION), measured(LOOP))] * 5, rule)

    assert (verdict.kind, verdict.reason, is_open) == ("incomparable", REASON, False)


@pytest.mark.parametrize("better", ["same", "steps", "floor"])
def test_so_it_is_with_numbers_of_trainings(better: str) -> None:
    family = Family(
        current={"m": [measured(LOOP, better=better)]},
        stored={"m": stored(PER_ITERATION, better=better)},
        same_software=True,
    )
    verdict = judge_family(family)

    assert (verdict.kind, verdict.reason) == ("incomparable", REASON)


def test_an_entry_stores_the_identity_and_leaves_out_what_only_describes() -> None:
    case = Case(test="t.py::t", id="ws2", conditions=ON_TWO, device="cpu")
    measurement = Measurement(name="m", unit="s", better="lower", value=1.0, identity=LOOP, facts={"busbw_factor": 1})
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[measurement])

    assert make_entry(case, [launch], {}).metrics["m"].identity == LOOP


def test_a_verdict_tells_both() -> None:
    measurement = Measurement(name="m", unit="s", better="lower", value=1.0, identity=LOOP, facts={"busbw_factor": 1})

    verdict = judge([measurement], None, Rule(tolerance=0.1, comparisons=1, max_launches=1)).verdict

    assert verdict.facts == {**LOOP, "busbw_factor": 1}
