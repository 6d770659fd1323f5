"""What few launches show: is a case worth more of them, and are they enough for a baseline?"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace as replaced

import pytest
from support.metrics import passed
from support.stores import CASE, SOFTWARE, entry
from support.stores import screened as of_screening

from pytest_distbench.judging.entry import are_enough, explained_by_noise, fewest_launches, make_baseline
from pytest_distbench.judging.screening import CONFIRMED, SCREENING_LAUNCHES, SEEN_SHARE, SUSPICIOUS, Evidence
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

TERMS = Terms(default_tolerance=0.15, max_launches=SCREENING_LAUNCHES, cores=2)
STORED = 10


def measurement(value: float, cpu_s: float | None = None, size: int | None = None, **more: object) -> Sample:
    summary = Spread(n=50, minimum=value, p25=value, median=value, p95=value, p99=value, mean=value, stdev=0.0)
    made = Sample(name="step", unit="s", better="lower", value=value, spread=summary)
    companions, at = {} if cpu_s is None else {"cpu_s": cpu_s}, {} if size is None else {"message_bytes": size}
    return replace(made, **({"companions": companions, "at": at} | more))


def launch(index: int, *measurements: Sample) -> LaunchRecord:
    return passed(*measurements, index=index, software=dict(SOFTWARE))


def noisy(rng: random.Random, sigma: float, factor: float = 1.0) -> float:
    return factor * math.exp(rng.gauss(0.0, sigma))


def baseline(launches: list[LaunchRecord]) -> BaselineEntry:
    return make_baseline(CASE, launches, SOFTWARE)


def screened(
    entry: BaselineEntry, launches: list[LaunchRecord], *, comparisons: int = 1, terms: Terms = TERMS
) -> tuple[dict[str, Finding], float]:
    found, suspicion = of_screening(terms, launches, entry, comparisons=comparisons)
    return {finding.metric: finding for finding in found}, suspicion


def alone(rng: random.Random, sigma: float, count: int, factor: float = 1.0) -> list[LaunchRecord]:
    return [launch(i, measurement(noisy(rng, sigma, factor))) for i in range(count)]


STEADY = baseline(alone(random.Random(1), 0.01, STORED))


def suspicious_after(entry: BaselineEntry, launches: list[LaunchRecord], comparisons: int) -> tuple[bool, int]:
    """Whether a case is suspicious, and how many launches that took, as the loop asks for them."""
    for count in range(1, SCREENING_LAUNCHES + 1):
        found, suspicion = screened(entry, launches[:count], comparisons=comparisons)
        if not any(j.is_open for j in found.values()):
            return suspicion >= SUSPICIOUS, count
    raise AssertionError("still open")


def test_what_is_slower_asks_for_three_launches_where_there_may_be_more_and_is_suspicious_then() -> None:
    found, suspicion = screened(STEADY, alone(random.Random(2), 0.0, 1))
    assert (found["step"].kind, found["step"].is_open, suspicion) == ("unchanged", False, 0)

    slower = alone(random.Random(2), 0.01, SCREENING_LAUNCHES, 1.2)
    assert [screened(STEADY, slower[:n])[0]["step"].is_open for n in (1, 2, 3)] == [True, True, False]
    assert screened(STEADY, slower)[1] > 1

    found, suspicion = screened(STEADY, alone(random.Random(2), 0.01, 1, 1.2), terms=replaced(TERMS, max_launches=1))
    assert not found["step"].is_open
    assert suspicion > 1


@pytest.mark.parametrize("change", [0.9, 0.75, 1.05])
def test_below_half_of_the_tolerance_nothing_is_suspicious(change: float) -> None:
    entry = baseline(alone(random.Random(1), 0.001, STORED))

    assert screened(entry, alone(random.Random(2), 0.001, SCREENING_LAUNCHES, change))[1] < SUSPICIOUS


def test_a_faster_machine_may_hide_a_slowdown_and_says_so() -> None:
    entry = baseline(alone(random.Random(1), 0.02, STORED))
    found, suspicion = screened(entry, alone(random.Random(2), 0.02, 1, 0.8))

    assert (found["step"].code, 0 < suspicion < SUSPICIOUS) == ("low-power", True)
    assert (found["step"].mde or 0) > 0.25


def test_cpu_time_is_evidence_of_a_slowdown_but_not_on_a_gpu() -> None:
    rng = random.Random(3)
    busy = [launch(i, measurement(noisy(rng, 0.1, 1.5), noisy(rng, 0.02, 2.0))) for i in range(STORED)]
    slower = [launch(i, measurement(noisy(rng, 0.1, 1.2), noisy(rng, 0.02, 2.4))) for i in range(SCREENING_LAUNCHES)]
    assert screened(baseline(busy), slower)[1] > 1

    rng = random.Random(3)

    def on_gpu(cpu_s: float) -> Sample:
        return measurement(noisy(rng, 0.01), companions={"cpu_s": cpu_s, "host_s": cpu_s})

    entry = baseline([launch(i, on_gpu(noisy(rng, 0.01))) for i in range(STORED)])
    assert screened(entry, [launch(i, on_gpu(2.0)) for i in range(SCREENING_LAUNCHES)])[1] == 0


def test_the_sizes_of_a_sweep_are_looked_at_together() -> None:
    sizes = [1 << n for n in range(10, 30)]

    def sweep(rng: random.Random, index: int, factor: float) -> LaunchRecord:
        return launch(index, *(measurement(noisy(rng, 0.2, factor), size=size) for size in sizes))

    rng = random.Random(4)
    entry = baseline([sweep(rng, i, 1.0) for i in range(STORED)])
    _, suspicion = screened(entry, [sweep(rng, i, 1.2) for i in range(SCREENING_LAUNCHES)], comparisons=len(sizes))
    found, _ = screened(entry, [sweep(rng, 0, 0.9)], comparisons=len(sizes))

    assert suspicion > 1
    assert all((j.mde or 1.0) < 0.3 for j in found.values())


@pytest.mark.parametrize("comparisons", [1, 30])
@pytest.mark.parametrize("sigma", [0.03, 0.15])
def test_of_healthy_cases_hardly_any_is_confirmed_and_nearly_all_need_one_launch(
    sigma: float, comparisons: int
) -> None:
    rng = random.Random(5)
    answers = [
        suspicious_after(baseline(alone(rng, sigma, STORED)), alone(rng, sigma, SCREENING_LAUNCHES), comparisons)
        for _ in range(200)
    ]

    assert statistics.fmean(found for found, _ in answers) * comparisons < CONFIRMED
    assert statistics.fmean(count for _, count in answers) < 1.3


def test_the_smallest_slowdown_that_is_seen_is_beyond_both_limits_in_eight_runs_of_ten() -> None:
    one = Evidence(
        keys=("m",), worse_by=0.0, sigma=0.1, stored=10, launches=1, floor=0.05, asking=0.05, confirming=0.01
    )
    beyond = [(one.sees - one.limit(n)) / (0.1 * math.sqrt(1 / 10 + 1 / n)) for n in (1, SCREENING_LAUNCHES)]

    assert math.prod(map(statistics.NormalDist().cdf, beyond)) == pytest.approx(SEEN_SHARE, abs=1e-3)


def test_another_workload_and_what_nobody_wants_judged_raise_no_suspicion() -> None:
    entry = replace(STEADY, workload="other")
    found, suspicion = screened(entry, alone(random.Random(2), 0.01, 1, 2.0))
    assert (found["step"].kind, suspicion) == ("inconclusive", 0)

    terms = replaced(TERMS, metrics=("other",))
    assert screened(STEADY, alone(random.Random(2), 0.01, SCREENING_LAUNCHES, 2.0), terms=terms)[1] == 0

    for odd, said in ((measurement(0.0), ("inconclusive", 1)), (measurement(2.0, better="higher"), ("missing", 0))):
        found, suspicion = screened(STEADY, [launch(0, odd)])
        assert (found["step"].kind, suspicion) == said


def terms(tolerance: float = 0.1, **changes: object) -> Terms:
    return Terms(**{"default_tolerance": tolerance, "max_launches": 10, "cores": 2} | changes)  # type: ignore[arg-type]


def launches(*metrics: Sequence[float | None], **changes: object) -> list[LaunchRecord]:
    """One launch per value; of several metrics at several points of one name."""
    usual = replace(Sample(name="step", unit="s", better="lower", value=None), **changes)
    made = [[replace(usual, value=v, at={"i": i}) for i, v in enumerate(row)] for row in zip(*metrics, strict=True)]
    return [passed(*found, index=i) for i, found in enumerate(made)]


def quiet(count: int, sigma: float = 0.001) -> list[float]:
    return [math.exp(sigma * (-1) ** i) for i in range(count)]


@pytest.mark.parametrize("better", ["exact", "memory", "curve"])
def test_what_repeats_needs_two_launches(better: str) -> None:
    series = {"values": [2.0, 1.0]} if better == "curve" else {}

    assert not are_enough(terms(), launches([7.0], better=better, **series))
    assert are_enough(terms(), launches([7.0, 7.0], better=better, **series))


def test_launches_are_asked_for_as_the_noise_wants() -> None:
    assert not are_enough(terms(), launches(quiet(4)))
    assert are_enough(terms(), launches(quiet(5)))
    assert not are_enough(terms(), launches(quiet(9, sigma=0.1)))

    made = launches(quiet(5, sigma=0.05))
    assert not are_enough(terms(0.1), made)
    assert are_enough(terms(1.0), made)
    assert are_enough(terms(0.1), made, entry(1.0, tolerance=1.0)), "as set by hand in the baseline file"

    made = launches(quiet(5), quiet(5, sigma=0.3))
    other = [replace(m, measurements=[m.measurements[0], replace(m.measurements[1], name="b")]) for m in made]
    assert not are_enough(terms(), other)
    assert are_enough(terms(metrics=("step",)), other)
    assert fewest_launches(terms(metrics=("count",)), other) == 2

    assert are_enough(terms(), launches(*[quiet(5)] * 5))
    assert not are_enough(terms(), launches(quiet(5), quiet(5), *[quiet(5, sigma=0.3)] * 4))

    assert not are_enough(terms(), launches(quiet(9), better="same"))

    assert are_enough(terms(), launches([0.0] * 5))
    assert not are_enough(terms(), launches([0.0, 0.0, 0.0, 0.0, 1.0]))
    assert not are_enough(terms(), launches([1.0, 1.0, 1.0, 1.0, None]))


def test_stopping_when_the_noise_is_known_does_not_keep_baselines_that_were_quiet_by_luck() -> None:
    """Noise that a tolerance of 20 % cannot decide: whoever stopped at its estimate would keep a third after five."""
    dice, sigma, tolerance = random.Random(5), 0.07, 0.2
    assert math.log1p(tolerance) < explained_by_noise(sigma, 10) < 0.4
    kept = sum(
        are_enough(terms(tolerance), launches([math.exp(dice.gauss(0, sigma)) for _ in range(5)])) for _ in range(500)
    )

    assert kept / 500 < 0.15
