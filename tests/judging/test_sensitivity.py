"""How good a baseline is: the slowdowns that the rules will detect, for the noise of its launches."""

from __future__ import annotations

import math
import statistics

import pytest
from support.metrics import metric, timed

from pytest_distbench.judging.entry import stored_metric
from pytest_distbench.judging.pairs import PairCircumstances, power
from pytest_distbench.judging.sensitivity import LOOKS, SPENDING, sensitivity_lines, sensitivity_of
from pytest_distbench.judging.stats import BASELINE_ERROR_RATE
from pytest_distbench.judging.stored_rule import Comparison
from pytest_distbench.records.case import BaselineMetric
from pytest_distbench.records.run import Sensitivity
from pytest_distbench.records.wanted import RUN_LAUNCHES

NOISY = [1.0, 1.6, 0.8, 1.3, 0.7, 1.9, 1.1, 0.9, 1.5, 1.2]
STEADY = [1.0, 1.001, 0.999, 1.0, 1.002]


def stored(values: list[float], better: str = "lower", unit: str = "s") -> BaselineMetric:
    return BaselineMetric(better=better, unit=unit, launches=list(values))  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [NOISY, [v**0.2 for v in NOISY]])
@pytest.mark.parametrize("tolerance", [0.1, 0.5])
def test_it_is_what_the_rules_say_of_launches_with_this_noise(values: list[float], tolerance: float) -> None:
    found = sensitivity_of({"step": stored(values)}, {"step": tolerance})
    assert found is not None
    again = Comparison.of(
        [metric(v) for v in values], stored(values), tolerance=tolerance, alpha=BASELINE_ERROR_RATE,
        most=RUN_LAUNCHES, noise_floor=0.0,
    )  # fmt: skip
    pair = found.noise * math.sqrt(1 + 1 / 2)  # of one launch and the mean of two
    under = PairCircumstances(tolerance=tolerance, comparisons=1, looks=LOOKS, spending=SPENDING)

    assert found.noise == pytest.approx(statistics.stdev(math.log(v) for v in values))
    assert found.mde == pytest.approx(again.mde)
    assert power(found.paired_mde, pair, under) == pytest.approx(0.9, abs=0.01)


def test_the_noise_is_that_of_what_is_judged() -> None:
    """Of a series of iterations: the geometric mean of minimum and 25th percentile."""
    launches = [timed(v, fastest=1 / v**3, slow=9.0) for v in (1.1, 1.2, 1.15, 1.3)]
    fast = [math.log(m.value * m.summary.minimum) / 2 for m in launches if m.value and m.summary]
    found = sensitivity_of({"step": stored_metric(launches, tolerance=None)}, {"step": 0.1})

    assert found is not None
    assert found.noise == pytest.approx(statistics.stdev(fast), rel=0.01)


def test_the_timing_that_is_hardest_to_judge_stands_for_its_case() -> None:
    metrics = {"steady": stored(STEADY), "noisy": stored(NOISY), "count": stored([7.0, 7.0], "exact", "")}
    tolerances = dict.fromkeys(metrics, 0.1)
    found = sensitivity_of(metrics, tolerances)

    assert found is not None
    assert found.metric == "noisy"
    only_steady = sensitivity_of(metrics, {"steady": 0.1})
    assert only_steady is not None
    assert 0.1 < only_steady.mde < 0.11 > only_steady.paired_mde > 0.1
    for left in ({"count": stored([7.0, 7.0], "exact", "")}, {"step": stored([1.0])}, {"step": stored([1.0, 0.0])}):
        assert sensitivity_of(left, dict.fromkeys(left, 0.1)) is None

    sweep = {f"latency[message_bytes={n}]": stored(NOISY) for n in range(4)} | {
        "latency[message_bytes=9]": stored(STEADY)
    }
    quiet = sensitivity_of(sweep, {"latency[message_bytes=9]": 0.1})
    assert quiet is not None
    assert quiet.noise == pytest.approx(statistics.stdev(map(math.log, NOISY))), "none is half as quiet as its siblings"


def test_one_sentence_has_the_median_case_and_the_worst_and_a_poor_baseline_has_advice() -> None:
    cases = [
        (f"test_{n}[ws2]", Sensitivity(metric="step", noise=n / 100, mde=n / 50, paired_mde=n / 99)) for n in (5, 1, 3)
    ]
    poor = Sensitivity(metric="step", noise=0.25, mde=1.09, paired_mde=0.28)

    assert sensitivity_lines(cases) == [
        (
            "noise 3 % (median of 3 cases): baselines alone detect slowdowns above 6 %, with A/B about 3 %; "
            "worst, test_5[ws2] step: noise 5 %, above 10 %, with A/B about 5.1 %"
        )
    ]
    assert sensitivity_lines([("test_a[ws2]", poor)]) == [
        "test_a[ws2] step: noise 25 %: this baseline alone detects slowdowns above 109 %, with A/B about 28 %",
        "to detect smaller ones: a quieter machine (distbench doctor), or more iterations in the loop; record again",
    ]
    assert sensitivity_lines([]) == []
