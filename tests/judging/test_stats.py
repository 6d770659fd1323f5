"""The plain-Python statistics agree with SciPy and numpy."""

from __future__ import annotations

import numpy
import pytest
import scipy  # which loads its stats when they are first used: a second
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.judging.stats import (
    chi_square_quantile,
    median_interval,
    noise_limit,
    normal_quantile,
    pooled_stdev,
    smallest_detectable,
    student_t_cdf,
    student_t_quantile,
    worse_pairs,
)


@given(st.floats(-50, 50), st.integers(1, 60))
def test_student_t_cdf_is_scipys(t: float, df: int) -> None:
    # scipy's is off by 7e-12 where t is 2.5e-6 and df 1: there it is 1/2 + atan(t) / pi
    assert student_t_cdf(t, df) == pytest.approx(scipy.stats.t.cdf(t, df), abs=1e-10)


@pytest.mark.parametrize("df", [1, 2, 3, 8, 9, 13, 18, 40])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.975, 0.9996, 0.99999])
def test_student_t_quantile_is_scipys(p: float, df: int) -> None:
    assert student_t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-6, abs=1e-9)


def test_spreads_and_ranks_are_those_of_the_textbooks() -> None:
    assert normal_quantile(0.9) == pytest.approx(scipy.stats.norm.ppf(0.9))

    a, b = [1.0, 2.0, 3.0, 4.0], [10.0, 12.0]
    expected = ((3 * numpy.var(a, ddof=1) + numpy.var(b, ddof=1)) / 4) ** 0.5
    assert pooled_stdev(a, b) == pytest.approx(expected)

    a, b = [1.0, 2.0, 3.0, 4.0], [3.0, 5.0, 4.0]
    shift = noise_limit(pooled_stdev(a, b), 4, 3, 0.01) - (numpy.mean(b) - numpy.mean(a))
    p = scipy.stats.ttest_ind([x + shift for x in b], a, alternative="greater").pvalue
    assert p == pytest.approx(0.01)

    a, b = [1.0, 2.5, 3.0, 4.0], [3.5, 5.0, 2.0]
    assert worse_pairs(a, b) * 12 == scipy.stats.mannwhitneyu(b, a).statistic
    assert worse_pairs(a, b, -1.0) * 12 == scipy.stats.mannwhitneyu(a, b).statistic


@pytest.mark.parametrize("df", [4, 9, 30])
@pytest.mark.parametrize("p", [0.05, 0.2, 0.95])
def test_chi_square_quantile_is_nearly_scipys(p: float, df: int) -> None:
    assert chi_square_quantile(p, df) == pytest.approx(scipy.stats.chi2.ppf(p, df), rel=0.035)


@pytest.mark.parametrize(("stored", "new"), [(10, 3), (10, 5), (10, 10), (20, 20)])
def test_the_mde_has_the_power_that_the_noncentral_t_distribution_gives(stored: int, new: int) -> None:
    sigma, alpha, df = 0.1, 0.0004, stored + new - 2
    shift = numpy.log1p(smallest_detectable(sigma, stored, new, alpha)) / (sigma * (1 / stored + 1 / new) ** 0.5)

    power = 1 - scipy.stats.nct.cdf(scipy.stats.t.ppf(1 - alpha, df), df, shift)
    assert power == pytest.approx(0.9, abs=0.015)
    assert smallest_detectable(0.0, stored, new, alpha, tolerance=0.3) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([1.0, 2.0, 3.0, 4.0], None),
        ([5.0, 1.0, 4.0, 2.0, 3.0], (1.0, 5.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], (2.0, 7.0)),
    ],
)
def test_the_interval_of_a_median_is_between_two_values(
    values: list[float], interval: tuple[float, float] | None
) -> None:
    assert median_interval(values) == interval
