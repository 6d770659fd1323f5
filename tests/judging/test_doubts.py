"""Could this run have failed? Planted slowdowns, directions, metrics that cannot fail. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from support.metrics import passed
from support.results import PAIRED, result, verdict

from pytest_distbench.judging.doubts import (
    clocks_of,
    common_movement,
    out_of_reach,
    share_beyond,
    spoken_against,
    why_doubtful,
)
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.metric import Bound, Measurement
from pytest_distbench.records.run import CaseResult

LAUNCH = passed(
    Measurement(name="step", unit="s", better="lower", value=1.0),
    Measurement(name="rate", unit="1/s", better="higher", value=1.0),
    Measurement(name="size", unit="B", better="lower", value=1.0),
    Measurement(name="shown", unit="s", better="info", value=1.0),
    Measurement(name="loss_curve", unit="", better="curve", value=1.0),
)


@pytest.mark.parametrize(
    ("metrics", "left_out", "clocks"),
    [(None, (), ["step", "rate"]), (("step", "size"), (), ["step"]), (None, ("step",), ["rate"])],
)
def test_clocks_are_what_is_judged_and_takes_time(
    metrics: tuple[str, ...] | None, left_out: tuple[str, ...], clocks: list[str]
) -> None:
    terms = Terms(default_tolerance=0.1, max_launches=1, cores=1, metrics=metrics)

    assert clocks_of(terms, LAUNCH, left_out=left_out) == clocks


@pytest.mark.parametrize(("tolerances", "share"), [([0.3], 0.4), ([0.06, 0.3], 0.4), ([0.0], 0.05)])
def test_what_is_planted_is_a_third_more_than_the_largest_tolerance(tolerances: list[float], share: float) -> None:
    assert share_beyond(tolerances) == pytest.approx(share)


def test_what_is_red_speaks_against_a_case_and_was_in_reach() -> None:
    clock, curve = verdict("beyond-threshold"), verdict("beyond-threshold", metric="loss_curve", better="curve")
    assert spoken_against([clock], ["step"]) is None
    assert spoken_against([clock, curve], ["step"]) == curve

    assert out_of_reach(result(verdict("beyond-threshold", mde=9.0))) == []


@pytest.mark.parametrize(
    ("name", "unit", "better", "words"),
    [
        ("ttft", "ms", "higher", "it is a time (ms), and a longer one would count as an improvement"),
        ("tokens", "tokens/s", "lower", "it is a rate (tokens/s), and a lower one would count as an improvement"),
        ("step_time", "", "higher", "a time that rises would count as an improvement"),
        ("val_loss", "", "higher", "a loss that rises would count as an improvement"),
        ("accuracy_at_5", "", "lower", "a accuracy that falls would count as an improvement"),
        ("time_to_accuracy", "s", "lower", ""),
        ("samples_per_second", "", "higher", ""),
        ("loss", "", "info", ""),
        ("time", "s", "exact", ""),
        ("uptime", "", "higher", ""),
    ],
)
def test_a_direction_that_turns_a_regression_into_an_improvement_is_doubted(
    name: str, unit: str, better: str, words: str
) -> None:
    assert why_doubtful(name, unit, better) == words.replace("a accuracy", "an accuracy")


SAME = {"torch": "2.13.0"}


@pytest.mark.parametrize(
    ("changes", "software", "why"),
    [
        ({"mde": 2.1}, SAME, "minimum detectable slowdown +210.0 %"),
        ({"mde": 0.4}, SAME, ""),
        ({"mde": None}, SAME, ""),
        ({"mde": 2.1, "bounds": [Bound(side="most", value=1.0, where="here")]}, SAME, ""),
        ({"better": "exact"}, SAME, ""),
        (
            {"better": "exact"},
            {"torch": "2.14.0"},
            "exact numbers cannot be compared under other software versions (torch 2.13.0 -> 2.14.0)",
        ),
        (
            {"better": "floor"},
            {"torch": "2.14.0"},
            "one seed shows nothing under other software versions (torch 2.13.0 -> 2.14.0)",
        ),
        ({"better": "floor", "facts": {"seeds": 5}}, {"torch": "2.14.0"}, ""),
        ({"better": "curve"}, {"torch": "2.14.0"}, ""),
        ({"better": "exact", "metric": "fingerprint"}, {"torch": "2.14.0"}, ""),
    ],
)
def test_a_rule_that_could_not_have_failed_is_found(
    changes: dict[str, Any], software: dict[str, str], why: str
) -> None:
    environment = Environment(platform="cpu-x", device="X", cores=2, software=software)
    found = out_of_reach(result(verdict("within-threshold", **changes), environment=environment))

    assert [text for _, text in found] == ([why] if why else [])


def case(*ratios: float, better: str = "lower", unit: str = "s") -> CaseResult:
    return result(
        *(verdict("within-threshold", metric=f"m{i}", ratio=r, better=better, unit=unit) for i, r in enumerate(ratios))
    )


def test_cases_that_moved_by_about_as_much_are_one_movement() -> None:
    found = common_movement([case(1.2), case(1.3, 1.2, 1.4), case(0.8, better="higher", unit="B/s"), case(1.25)])
    assert found is not None
    assert (found.cases, found.is_slower) == (4, True)
    assert (round(found.least, 2), round(found.most, 2)) == (1.2, 1.3)

    found = common_movement([case(0.8)] * 4)
    assert found is not None
    assert not found.is_slower


@pytest.mark.parametrize(
    "results",
    [
        [case(1.2)] * 3,
        [case(1.2)] * 4 + [case(1.0)],
        [case(1.2)] * 4 + [case(0.8)],
        [case(1.02)] * 9,
        [case(1.2, unit="B")] * 4,
        [result(verdict(ratio=1.2), reference=PAIRED)] * 4,
        [],
    ],
    ids=["few", "one stood still", "one became faster", "a little", "sizes", "beside another revision", "none"],
)
def test_anything_else_is_none(results: list[CaseResult]) -> None:
    assert common_movement(results) is None
