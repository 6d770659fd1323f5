"""Golden curves: where they part, by how much, and what that says."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.golden_curve import RTOL, Divergence, compare, deviations, round_digits

GOLDEN = [2.3, 2.1, 1.9, 1.8, 1.7]


def divergence(*factors: float, rounding: float = 0.0, rtol: float = RTOL) -> Divergence:
    return compare(GOLDEN, [a * f for a, f in zip(GOLDEN, factors, strict=True)], rtol=rtol, rounding=rounding)


def test_a_curve_diverges_where_it_begins_to_and_rounding_is_no_divergence() -> None:
    found = divergence(1, 1, 1, 1, 1)
    assert found == Divergence(starts_at=None, exceeds_at=None, largest=0.0, is_identical=True)
    assert found.suggest([], is_each_update=True).startswith("likely causes, behind the curve")

    found = divergence(1, 1 + 1e-6, 1 + 1e-4, 1.01, 1.02)
    assert (found.starts_at, found.exceeds_at) == (2, 4)
    assert found.largest == pytest.approx(0.02)

    assert divergence(1 + 1e-7, 1 + 1e-6, 1.01, 1, 1, rounding=1e-5).starts_at == 3

    # The float32 after 1.0 is 1 + 2**-23
    assert round_digits(1.0) != round_digits(1.0 + 2**-23)
    assert not compare([1.0], [1.0 + 2**-23], rtol=RTOL, rounding=0.0).is_identical

    assert deviations([1.0, 0.0], [1.0, 1e-9]) == [0.0, pytest.approx(1e-3)]
    assert deviations([0.0, 0.0], [0.0, 0.0]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (1, "initialisation"), (1, "batch size"), (2, "gradient"), (2, "batch size or accumulation"), (3, "momentum"),
        (3, "gradients not cleared (zero_grad)"), (4, "schedule"), (5, "schedule"),
    ],
)  # fmt: skip
def test_the_first_step_that_differs_suggests_the_cause(step: int, cause: str) -> None:
    factors = [1.0] * (step - 1) + [1.5] * (6 - step)

    assert cause in divergence(*factors).suggest([], is_each_update=True)


def test_a_divergence_is_described_in_the_scripts_own_words() -> None:
    found = divergence(1, 1, 1.01, 1, 1)
    words = ["iter 0", "iter 10", "iter 20"]
    assert found.describe(words).startswith("diverges at value 3 (iter 20),")
    assert "momentum" not in found.suggest(words, is_each_update=False)
    assert "gradient" in found.suggest(words, is_each_update=False)
    assert "momentum" in found.suggest(words, is_each_update=True)

    of_epochs = compare([2.0, 1.0], [2.1, 1.1], rtol=1e-3, rounding=0.0)
    text = "likely causes, within the first epoch: initialisation, data"
    assert of_epochs.suggest(["epoch 0", "epoch 1"], is_each_update=False).startswith(text)
