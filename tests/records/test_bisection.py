"""What a search keeps, to go on."""

from __future__ import annotations

from support.bisections import CLOCK, COMMITS, EXACT


def test_a_commit_is_told_by_ten_digits() -> None:
    assert COMMITS[0].short == "0000000000"


def test_what_has_no_pairs_is_exact() -> None:
    assert EXACT.is_exact
    assert not CLOCK.is_exact
