"""Latency and bandwidth of a sweep, and which of its sizes moved."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.size_model import fit, which

SIZES = [4 * 2**n for n in range(20)]


@pytest.mark.parametrize(("latency_s", "s_per_byte"), [(2e-4, 1e-9), (0.0, 1e-9), (2e-4, 0.0)])
def test_the_terms_a_sweep_was_made_of_are_found(latency_s: float, s_per_byte: float) -> None:
    terms = fit({size: latency_s + s_per_byte * size + 1e-12 for size in SIZES})

    assert terms.latency_s == pytest.approx(latency_s, rel=1e-6, abs=1e-9)
    assert terms.s_per_byte == pytest.approx(s_per_byte, rel=1e-6, abs=1e-15)


def test_a_slower_call_moves_the_latency_and_not_the_bandwidth() -> None:
    before = fit({size: 2e-4 + 1e-9 * size for size in SIZES})
    after = fit({size: 3e-4 + 1e-9 * size for size in SIZES})

    assert after.latency_s / before.latency_s == pytest.approx(1.5)
    assert after.s_per_byte == pytest.approx(before.s_per_byte)


def test_no_term_is_negative_where_the_model_does_not_hold() -> None:
    falling = fit({4: 2.0, 64: 1.0, 1024: 0.5, 4096: 0.1})
    steep = fit({4: 1e-9, 64: 1e-6, 1024: 1e-2, 4096: 1.0})

    assert (falling.s_per_byte, steep.latency_s) == (0.0, 0.0)
    assert falling.latency_s > 0
    assert steep.s_per_byte > 0


@pytest.mark.parametrize(
    ("hit", "words"),
    [
        ([4, 8, 16, 32], "at all 4 sizes"),
        ([16, 32], "from 16 B up"),
        ([4, 8], "up to 8 B"),
        ([8, 16], "from 8 B to 16 B"),
        ([8], "at 8 B only"),
        ([4, 16], "at 2 of 4 sizes, first at 4 B"),
    ],
)
def test_sizes_in_words(hit: list[int], words: str) -> None:
    assert which(hit, [4, 8, 16, 32]) == words
