"""Whether what is called better fits the unit and the name of a number."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.direction import why_doubtful


@pytest.mark.parametrize(
    ("name", "unit", "better", "words"),
    [
        ("ttft", "ms", "higher", "it is a time (ms), and a longer one would be called an improvement"),
        ("tokens", "tokens/s", "lower", "it is a rate (tokens/s), and a lower one would be called an improvement"),
        ("step_time", "", "higher", "a time that rises would be called an improvement"),
        ("val_loss", "", "higher", "a loss that rises would be called an improvement"),
        ("accuracy_at_5", "", "lower", "a accuracy that falls would be called an improvement"),
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
