"""The second statistic: what most iterations do, where the fast ones go on as before."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from support.stores import CASE, SOFTWARE

from pytest_distbench.judging.confirmation import Sides, judge_in_turns
from pytest_distbench.judging.entry import make_entry, stored_metric
from pytest_distbench.judging.metric import Circumstances, judge
from pytest_distbench.judging.screening import SCREENING_LAUNCHES, SUSPICIOUS, judge_screened
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.whole_rule import by_whole, whole
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Summary
from pytest_distbench.records.quantiles import distribution, quantile

STORED = 10
TOLERANCE = 0.1
Shape = Callable[[list[float]], list[float]]

FAULTS: dict[str, Shape] = {
    "two of three": lambda times: [t * (1.95 if i % 3 else 1) for i, t in enumerate(times)],
    "every second": lambda times: [t * (1.8 if i % 2 else 1) for i, t in enumerate(times)],
    "the last two thirds": lambda times: [t * (1.6 if 3 * i >= len(times) else 1) for i, t in enumerate(times)],
    "seven of ten, much": lambda times: [t * (7 if i % 10 < 7 else 1) for i, t in enumerate(times)],
    "bursts of ten": lambda times: [t * (3 if i // 10 % 2 else 1) for i, t in enumerate(times)],
    "a tail that grows": lambda times: [t * (1 + 1.5 * i / len(times)) if i % 4 else t for i, t in enumerate(times)],
}
BEYOND_DOUBT = {"seven of ten, much"}
HEALTHY: dict[str, Shape] = {
    "nothing": lambda times: times,
    "one pause": lambda times: [t * (8 if i == 5 else 1) for i, t in enumerate(times)],
    "a slower first tenth": lambda times: [t * (1.5 if 10 * i < len(times) else 1) for i, t in enumerate(times)],
    "another order": lambda times: times[::-1],
    "faster": lambda times: [t * 0.8 for t in times],
}


def measured(values: Sequence[float], better: Better = "lower") -> Measurement:
    """As a launch keeps it."""
    return Measurement(
        name="step",
        unit="s" if better == "lower" else "1/s",
        better=better,
        value=METRIC_KINDS[better].launch_value(values),
        summary=Summary(
            n=len(values),
            minimum=min(values),
            p25=quantile(values, 0.25),
            median=statistics.median(values),
            p95=quantile(values, 0.95),
            p99=max(values),
            mean=statistics.fmean(values),
            stdev=statistics.stdev(values),
        ),
        distribution=distribution(values),
        ranks=2,
    )


def launches(count: int, seed: int, shape: Shape = list, better: Better = "lower") -> list[LaunchRecord]:
    rng = random.Random(seed)
    found = []
    for index in range(count):
        level = math.exp(rng.gauss(0.0, 0.02))
        times = shape([0.01 * level * math.exp(abs(rng.gauss(0.0, 0.03))) for _ in range(60)])
        values = times if better == "lower" else [1 / t for t in times]
        found.append(
            LaunchRecord(
                index=index,
                outcome="passed",
                wall_s=1.0,
                measurements=[measured(values, better)],
                software=dict(SOFTWARE),
            )
        )
    return found


def suspicion(shape: Shape, better: Better) -> float:
    terms = Terms(default_tolerance=TOLERANCE, max_launches=SCREENING_LAUNCHES, cores=2)
    entry = make_entry(CASE, launches(STORED, 1, better=better), SOFTWARE)
    new = launches(SCREENING_LAUNCHES, 2, shape, better)
    for count in range(1, SCREENING_LAUNCHES + 1):
        judgements, found = judge_screened(terms, new[:count], entry, case=CASE, comparisons=20)
        if not any(judgement.is_open for judgement in judgements):
            break
    return found


def in_turns(shape: Shape, better: Better) -> tuple[str, str]:
    sides = Sides(
        launches=launches(7, 3, shape, better),
        references=launches(7, 4, better=better),
        controls=launches(7, 5, better=better),
    )
    terms = Terms(default_tolerance=TOLERANCE, max_launches=SCREENING_LAUNCHES, cores=2)
    verdict = judge_in_turns(terms, CASE, sides, tolerances={"step": TOLERANCE}, name="then", cases=1)["step"].verdict
    return verdict.kind, verdict.reason


def stored_verdict(shape: Shape, better: Better) -> str:
    then = stored_metric([launch.measurements[0] for launch in launches(STORED, 1, better=better)], tolerance=None)
    under = Circumstances(tolerance=TOLERANCE, comparisons=20, max_launches=10)
    now = [launch.measurements[0] for launch in launches(10, 6, shape, better)]
    count = 1
    while (found := judge(now[:count], then, under)).is_open:
        count += 1
    return found.verdict.kind


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("fault", FAULTS)
def test_iterations_that_became_slow_are_in_doubt_and_red_in_turns(fault: str, better: Better) -> None:
    kind, reason = in_turns(FAULTS[fault], better)

    assert suspicion(FAULTS[fault], better) >= SUSPICIOUS
    assert (kind, "then" in reason) == ("regressed", True)


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("change", HEALTHY)
def test_what_most_iterations_do_as_before_is_neither(change: str, better: Better) -> None:
    assert suspicion(HEALTHY[change], better) < SUSPICIOUS
    assert in_turns(HEALTHY[change], better)[0] in ("unchanged", "improved")


@pytest.mark.parametrize("fault", FAULTS)
def test_stored_numbers_alone_are_red_where_it_is_beyond_doubt(fault: str) -> None:
    assert (stored_verdict(FAULTS[fault], "lower") == "regressed") == (fault in BEYOND_DOUBT)


@pytest.mark.parametrize("change", HEALTHY)
def test_stored_numbers_alone_are_not_red_of_what_is_healthy(change: str) -> None:
    assert stored_verdict(HEALTHY[change], "lower") in ("unchanged", "improved")


def test_a_baseline_of_an_older_file_is_compared_by_its_fast_side_alone() -> None:
    now = [launch.measurements[0] for launch in launches(STORED, 1)]
    then = stored_metric([Measurement(**{**vars_of(m), "distribution": []}) for m in now], tolerance=None)

    assert then.whole == []
    assert (
        judge(now, then, Circumstances(tolerance=TOLERANCE, comparisons=1, max_launches=10)).verdict.kind == "unchanged"
    )


def vars_of(measurement: Measurement) -> dict[str, object]:
    return {name: getattr(measurement, name) for name in measurement.__struct_fields__}


def test_what_has_no_iterations_or_is_no_clock_has_no_such_number() -> None:
    [launch] = launches(1, 1)
    [clock] = launch.measurements
    alone = Measurement(name="alone", unit="s", better="lower", value=1.0)
    zero = Measurement(name="zero", unit="s", better="lower", value=1.0, distribution=[0.0, 1.0, 1.0, 1.0])
    exact = Measurement(name="exact", unit="", better="exact", value=1.0, distribution=[1.0] * 4)

    assert whole(clock) == pytest.approx(statistics.geometric_mean(clock.distribution))
    assert [whole(m) for m in (alone, zero, exact)] == [None, None, None]
    assert [m.name for m in by_whole(launch).measurements] == ["step"]
