"""A fingerprint as a file holds it."""

from __future__ import annotations

import msgspec
import pytest

from pytest_distbench.records.fingerprint import Fingerprint, rank_ranges


def test_a_record_of_ranks_that_are_no_ranks_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.collectives"):
        msgspec.json.decode(b'{"collectives": {"1-x": []}}', type=Fingerprint)


def test_ranks_are_told_in_ranges() -> None:
    assert [rank_ranges([0, 2, 3]), rank_ranges([0, 1], 2), rank_ranges([0, 1], 3)] == ["0,2-3", "all", "0-1"]
