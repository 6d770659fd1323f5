"""A fingerprint as a file holds it."""

from __future__ import annotations

import msgspec
import pytest

from pytest_distbench.records.fingerprint import Fingerprint


def test_a_record_of_ranks_that_are_no_ranks_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.collectives"):
        msgspec.json.decode(b'{"collectives": {"1-x": []}}', type=Fingerprint)
