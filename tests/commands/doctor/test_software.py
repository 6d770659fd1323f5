"""What the doctor makes of the software."""

from __future__ import annotations

import pytest

from pytest_distbench.commands.doctor.software import release
from pytest_distbench.releases import NEWEST_TORCH, OLDEST_TORCH, TESTED, text


@pytest.mark.parametrize(
    ("torch", "python", "level", "found", "advice"),
    [
        (f"{text(NEWEST_TORCH)}.1+cu130", TESTED[NEWEST_TORCH][0], "ok", "is tested with Python", ""),
        (f"{text(NEWEST_TORCH)}.0", "3.99.1", "note", "not 3.99", ""),
        ("9.0.0", "3.13.0", "note", f"the nearest is {text(NEWEST_TORCH)}, with", "versions.py"),
        ("1.13.1", "3.11.7", "fail", "torch 1.13.1; ranks need", f"pip install 'torch>={text(OLDEST_TORCH)}'"),
    ],
)
def test_a_release_of_torch_is_tested_or_told_with_the_nearest(
    torch: str, python: str, level: str, found: str, advice: str
) -> None:
    first, *_ = release(torch, f"{python}.1")

    assert first.level == level
    assert found in first.found
    assert advice in first.advice


def test_what_a_release_lacks_is_told() -> None:
    _, *lacks = release(f"{text(OLDEST_TORCH)}.0", TESTED[OLDEST_TORCH][0])

    assert {lack.level for lack in lacks} == {"note"}
    assert [any(what in lack.found for lack in lacks) for what in ("no fingerprint of", "no --distbench-numa")] == [
        True
    ] * 2
