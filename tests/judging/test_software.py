"""Software drift is told by name, with both versions."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.software import software_changes, version_changes


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


def test_what_the_code_itself_chooses_is_told_and_excuses_nothing() -> None:
    stored = {"torch": "2.13", "matmul_precision": "ieee", "autocast": "off"}
    current = {"torch": "2.13", "matmul_precision": "tf32", "autocast": "off"}

    assert software_changes(stored, current) == ["matmul_precision ieee -> tf32"]
    assert version_changes(stored, current) == []
    assert version_changes(stored, {**current, "torch": "2.14"}) == ["torch 2.13 -> 2.14"]
