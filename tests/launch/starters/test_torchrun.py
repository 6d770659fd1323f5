"""What is read out of torchrun's own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.launch.starters.torchrun import exit_codes, torchrun_of_node

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


@pytest.mark.parametrize(("node", "is_host"), [("0", "True"), ("1", "False")])
def test_the_torchruns_of_several_hosts_meet_at_the_first(tmp_path: Path, node: str, is_host: str) -> None:
    place = {
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40123", "GROUP_RANK": node, "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "abc",
    }  # fmt: skip
    words = torchrun_of_node(4, place=place, address="10.0.0.7", logs=tmp_path)
    given = dict(word.split("=", 1) for word in words if word.startswith("--"))

    assert given["--rdzv-endpoint"] == "10.0.0.1:40123"
    assert given["--rdzv-conf"] == f"is_host={is_host}"
    assert (given["--nnodes"], given["--nproc-per-node"]) == ("2", "4")
    assert given["--local-addr"] == "10.0.0.7"


@given(st.text(max_size=300))
def test_any_text_may_stand_for_the_table(text: str) -> None:
    assert isinstance(exit_codes(text), dict)


def test_what_torch_loads_in_every_rank_for_our_rendezvous_brings_no_site_along() -> None:
    """It did for a while: a millisecond for each module, in each rank of each launch."""
    code = "import sys, pytest_distbench.launch.starters.torchrun; print(*[m for m in sys.modules if '.site.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {name.rpartition(".")[2] for name in done.stdout.split()} == {"processes"}
