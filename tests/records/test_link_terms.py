"""Latency and bandwidth of a sweep, and how sure they are."""

from __future__ import annotations

import random

import pytest

from pytest_distbench.records.summaries import WIDEST, fit_link_terms

SIZES = [4 * 2**n for n in range(25)]


@pytest.mark.parametrize(("latency_s", "s_per_byte"), [(2e-4, 1e-9), (1e-8, 1e-9), (2e-4, 1e-12)])
def test_the_terms_a_sweep_was_made_of_are_found(latency_s: float, s_per_byte: float) -> None:
    terms = fit_link_terms({size: latency_s + s_per_byte * size for size in SIZES})

    assert terms.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert terms.bandwidth == pytest.approx(1 / s_per_byte, rel=1e-6)
    assert max(terms.latency_error, terms.bandwidth_error) < 1e-6


def test_disturbed_sizes_and_slower_calls_move_their_own_term_alone() -> None:
    before = fit_link_terms({size: 2e-4 + 1e-9 * size for size in SIZES})
    after = fit_link_terms({size: 3e-4 + 1e-9 * size for size in SIZES})
    assert after.latency_s / before.latency_s == pytest.approx(1.5)
    assert after.bandwidth == pytest.approx(before.bandwidth)
    assert after.half_size == pytest.approx(3e5)

    times = {size: 2e-4 + 1e-9 * size for size in SIZES}
    disturbed = fit_link_terms({**times, 4 * 2**3: 5e-3, 2**24: 1.0})
    assert disturbed.latency_s == pytest.approx(2e-4, rel=0.02)
    assert disturbed.bandwidth == pytest.approx(1e9, rel=0.02)

    falling = fit_link_terms({4: 2.0, 64: 1.0, 1024: 0.5, 4096: 0.1})
    steep = fit_link_terms({4: 1e-9, 64: 1e-6, 1024: 1e-2, 4096: 1.0})
    assert falling.bandwidth_error == WIDEST
    assert steep.latency_error == WIDEST
    assert falling.latency_s > 0
    assert steep.bandwidth > 0

    # 200 sweeps whose times scatter by 10 %: the errors are the standard deviation of the terms, within a third
    random.seed(1)
    sweeps = [{size: (2e-4 + 1e-9 * size) * random.lognormvariate(0, 0.1) for size in SIZES} for _ in range(200)]
    terms = [fit_link_terms(sweep) for sweep in sweeps]
    errors = {"latency_s": "latency_error", "bandwidth": "bandwidth_error", "half_size": "half_size_error"}
    for value, error in errors.items():
        values = [getattr(t, value) for t in terms]
        mean = sum(values) / len(values)
        scatter = (sum((v / mean - 1) ** 2 for v in values) / len(values)) ** 0.5
        claimed = sum(getattr(t, error) for t in terms) / len(terms)
        assert claimed == pytest.approx(scatter, rel=0.34)
