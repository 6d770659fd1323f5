"""What is read out of torchrun's own words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.launch.torchrun import exit_codes

TABLE = """
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
"""


def test_the_closing_table_names_ranks_and_exit_codes() -> None:
    assert exit_codes(TABLE + TABLE.replace(": 1 (", ": 0 (").replace("-9", "3")) == {1: -9, 0: 3}


@given(st.text(max_size=300))
def test_any_text_may_stand_for_the_table(text: str) -> None:
    assert isinstance(exit_codes(text), dict)
