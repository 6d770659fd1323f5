"""What a rank says that cannot enter its network; that it can is tested in end_to_end/test_networks.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.errors import LauncherError
from pytest_distbench.records.network import Network
from pytest_distbench.worker.network import enter_network


def test_a_network_that_is_gone_is_told(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, network=Network(), network_place=str(tmp_path / "none"))
    with pytest.raises(
        LauncherError, match=r"rank 1 cannot enter its network: .*/none/host1: No such file or directory"
    ):
        enter_network(plan, 1)


def test_what_is_no_namespace_is_told(tmp_path: Path) -> None:
    (tmp_path / "host0").write_text("")
    plan = make_plan(tmp_path, network=Network(), network_place=str(tmp_path))
    with pytest.raises(LauncherError, match=r"/host0: (Invalid argument|Operation not permitted)"):
        enter_network(plan, 0)
