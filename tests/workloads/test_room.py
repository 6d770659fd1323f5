"""Memory is asked for before it is taken."""

from __future__ import annotations

import pytest
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.room import expect_room


def test_what_fits_is_let_through() -> None:
    expect_room(make_rank(), 1024, what="a message")


def test_what_does_not_fit_is_told_with_what_there_is() -> None:
    wanted = (
        r"1 of 1 ranks have no memory for a message: wanted 1\.024e\+06 GiB, rank 0 may take .* GiB; choose a smaller"
    )

    with pytest.raises(RecordingError, match=wanted):
        expect_room(make_rank(), 10**6 * 2**30 + 24000 * 2**30, what="a message")
