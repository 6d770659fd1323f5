"""Software drift is told by name, with both versions."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.software import software_changes


@pytest.mark.parametrize(
    ("stored", "current", "told"),
    [
        ({"torch": "2.12"}, {"torch": "2.12"}, []),
        ({"torch": "2.12", "numpy": "2"}, {"torch": "2.13", "numpy": "3"}, ["numpy 2 -> 3", "torch 2.12 -> 2.13"]),
        ({"mkl": "1"}, {}, ["mkl 1 -> -"]),
        ({}, {"mkl": "1"}, ["mkl - -> 1"]),
    ],
)
def test_what_differs_is_told_by_name(stored: dict[str, str], current: dict[str, str], told: list[str]) -> None:
    assert software_changes(stored, current) == told
