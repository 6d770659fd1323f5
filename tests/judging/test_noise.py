"""Noise between launches and drift between rounds, of known size, and what the rule finds in them."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from support.calibrations import SEED, drawn, logs

from pytest_distbench.judging import noise
from pytest_distbench.judging.stats import noise_limit
from pytest_distbench.judging.stored_rule import DRIFT, Comparison
from pytest_distbench.plugin.settings import read_settings
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.metric import Measurement, Summary
from pytest_distbench.records.quantiles import quantile
from pytest_distbench.records.record import replace


def test_noise_without_drift_is_one_deviation() -> None:
    sigma, drift = noise.sigma_and_drift(logs(drawn(20, 20, sigma=0.1)))

    assert sigma == pytest.approx(0.1, rel=0.1)
    assert drift == 0.0


def test_drift_between_rounds_is_told_apart_from_noise_between_launches() -> None:
    sigma, drift = noise.sigma_and_drift(logs(drawn(40, 10, sigma=0.05, drift=0.2)))

    assert sigma == pytest.approx(0.05, rel=0.1)
    assert drift == pytest.approx(0.2, rel=0.25)


def test_drift_is_seldom_seen_where_there_is_none() -> None:
    seen = sum(noise.sigma_and_drift(logs(drawn(4, 5, sigma=0.1, seed=seed)))[1] > 0 for seed in range(1000))

    assert seen <= 20  # 1 % of them, and room for chance


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], (0.0, 0.0)),
        ([[0.0, 0.0], [1.0, 1.0]], (0.0, math.sqrt(0.5))),
        ([[0.0, 1.0]], (math.sqrt(0.5), 0.0)),
        ([[0.0], [1.0]], (math.sqrt(0.5), 0.0)),
    ],
    ids=["no noise at all", "only between rounds", "one round", "one launch a round"],
)
def test_edges_of_noise_and_drift(rounds: list[list[float]], expected: tuple[float, float]) -> None:
    assert noise.sigma_and_drift(rounds) == pytest.approx(expected)


@pytest.mark.parametrize("drift", [0.0, 0.03])
@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_the_rule_finds_what_is_promised_nine_times_in_ten(sigma: float, drift: float) -> None:
    made = random.Random(SEED)
    (stored, new), alpha, tries = noise.BUDGETS[0], 0.001, 400
    promised = noise.smallest_slowdown(noise.Noise(sigma, drift), stored=stored, new=new, alpha=alpha)
    found = 0
    for _ in range(tries):
        today = math.log1p(promised) + made.gauss(0, drift) - made.gauss(0, drift)
        before = [math.exp(made.gauss(0, sigma)) for _ in range(stored)]
        after = [Measurement(name="a", unit="s", better="lower", value=math.exp(made.gauss(today, sigma)))]
        after += [replace(after[0], value=math.exp(made.gauss(today, sigma))) for _ in range(new - 1)]
        baseline = BaselineMetric(unit="s", better="lower", launches=before)
        rule = Comparison.of(after, baseline, tolerance=0.0, alpha=alpha, most=new, noise_floor=0.0)
        found += rule.answer.kind == "regressed"

    assert found / tries >= 0.87
    assert drift or found / tries <= 0.95, "it finds less than that too: the promise is too careful"


def test_the_first_budget_is_that_of_a_run_without_options(pytester: pytest.Pytester) -> None:
    settings = read_settings(pytester.parseconfig())

    assert noise.BUDGETS[0] == (settings.max_launches, settings.max_launches)
    assert settings.update_launches is None


def test_more_launches_find_less_but_never_less_than_the_rule_keeps_for_drift() -> None:
    found = [noise.smallest_slowdown(noise.Noise(0.1, 0.0), stored=n, new=n, alpha=0.001) for n in (5, 10, 100, 10_000)]
    least = math.expm1(noise_limit(0.1, 10_000, 10_000, 0.001, drift=DRIFT))

    assert found[0] > 1.1 * found[1] > 1.2 * found[2]
    assert found[3] == pytest.approx(least, rel=0.05)


def test_a_metric_quieter_than_its_siblings_is_promised_what_the_rule_believes_of_it() -> None:
    def size(own: float, typical: float) -> float:
        return noise.smallest_slowdown(noise.Noise(own, 0.0, typical), stored=10, new=10, alpha=0.001)

    assert size(0.1, 0.0) == size(0.1, 0.05)
    assert 0.7 * size(0.1, 0.0) < size(0.01, 0.1) < size(0.1, 0.0)


def test_the_launches_needed_are_the_fewest_that_hold() -> None:
    quiet = noise.Noise(0.03, 0.0)
    needed = noise.launches_needed(quiet, tolerance=0.1, alpha=0.001)

    assert needed is not None
    assert noise.smallest_slowdown(quiet, stored=max(10, needed), new=needed, alpha=0.001) <= 0.1
    assert noise.smallest_slowdown(quiet, stored=max(10, needed - 1), new=needed - 1, alpha=0.001) > 0.1


@pytest.mark.parametrize("found", [noise.Noise(0.05, 0.0), noise.Noise(0.0, 0.1), noise.Noise(0.001, 0.0, 0.05)])
def test_no_number_of_launches_holds_what_the_rule_cannot_find(found: noise.Noise) -> None:
    assert noise.launches_needed(found, tolerance=0.1, alpha=0.001) is None


@pytest.mark.parametrize("between", [0.0, 0.05])
def test_what_iterations_contribute_is_estimated_from_inside_the_launches(between: float) -> None:
    made = random.Random(SEED)
    measurements = []
    for _ in range(200):
        offset = made.gauss(0, between)
        series = [1e-3 * math.exp(offset + made.gauss(0, 0.1)) for _ in range(50)]
        p25, median = quantile(series, 0.25), quantile(series, 0.5)
        summary = Summary(n=50, minimum=min(series), p25=p25, median=median, p95=1.0, p99=1.0, mean=1.0, stdev=1.0)
        measurements.append(Measurement(name="a", unit="s", better="lower", value=p25, summary=summary))
    sigma = statistics.stdev(math.log(m.value) for m in measurements if m.value)
    share = noise.iterations_share(measurements, sigma)

    truth = 1 - (between / sigma) ** 2
    assert share == pytest.approx(truth, abs=0.3)


def test_iterations_of_a_single_number_are_not_known() -> None:
    assert noise.iterations_share([Measurement(name="a", unit="s", better="lower", value=1.0)], 0.1) is None


@pytest.mark.parametrize(
    ("slowdown", "proposed"), [(0.0, 0.01), (0.011, 0.02), (0.1, 0.1), (0.101, 0.15), (0.36, 0.4), (3.01, 3.05)]
)
def test_proposals_are_round_and_never_too_small(slowdown: float, proposed: float) -> None:
    assert noise.proposed_tolerance(slowdown) == proposed
