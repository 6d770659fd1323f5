"""Overlap of communication and computing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Launch

from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.workloads import overlap
from pytest_distbench.workloads.overlap import overlap_fraction


@pytest.mark.parametrize(
    ("communication_s", "compute_s", "both_s", "fraction"),
    [
        (2.0, 3.0, 3.0, 1.0),  # hidden whole
        (2.0, 3.0, 5.0, 0.0),  # one after the other
        (2.0, 3.0, 4.0, 0.5),
        (3.0, 2.0, 4.0, 0.5),  # the shorter of the two counts
        (2.0, 3.0, 6.0, 0.0),  # they hinder each other
        (2.0, 3.0, 2.5, 1.0),  # noise
    ],
)
def test_the_fraction_is_that_of_imb_nbc(
    communication_s: float, compute_s: float, both_s: float, fraction: float
) -> None:
    assert overlap_fraction(communication_s, compute_s, both_s) == fraction


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_three_clocks_and_what_follows_from_them(launcher: Launcher, tmp_path: Path) -> None:
    launch = Launch(launcher, tmp_path, Path(overlap.__file__))
    params = {
        "message_bytes": 4096, "dtype": "bfloat16", "matrix": 16, "multiplications": 2, "iterations": 5, "warmup": 1,
    }  # fmt: skip
    record = launch("overlap", params=params)

    assert (record.outcome, record.reason) == ("passed", "")
    found = {m.name: m for m in record.measurements}
    assert list(found) == ["communication_time", "compute_time", "both_time", "exposed_time", "overlap", "peak_memory"]
    judged = ["communication_time", "compute_time", "both_time", "peak_memory"]
    assert [m.name for m in record.measurements if m.is_judged] == judged
    assert 0 <= (found["overlap"].value or 0.0) <= 1
    assert {m.identity["matrix"] for m in record.measurements if m.name != "peak_memory"} == {16}
