"""Limits nest: what explains a hang comes before what ends it."""

from __future__ import annotations

import pytest

from pytest_distbench.worker.limits import collective_s, heartbeat_s, start_s, store_s


@pytest.mark.parametrize("timeout_s", [10.0, 240.0, 301.0, 600.0, 3600.0, 86_400.0])
def test_nccls_watchdog_never_ends_a_rank_before_the_launch_does(timeout_s: float) -> None:
    assert collective_s("nccl", timeout_s, {}) > timeout_s
    assert heartbeat_s(timeout_s) > timeout_s


@pytest.mark.parametrize(
    ("backend", "variables"),
    [("gloo", {}), ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "1"}), ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "True"})],
)
def test_what_raises_does_so_between_the_rendezvous_and_the_launchs_end(
    backend: str, variables: dict[str, str]
) -> None:
    assert store_s(100.0) < collective_s(backend, 100.0, variables) < 100.0


def test_torchs_own_limit_for_a_heartbeat_is_not_made_shorter() -> None:
    assert heartbeat_s(10.0) == 480.0


def test_ten_thousand_ranks_have_longer_to_come_up() -> None:
    assert start_s(10_000) - start_s(2) == pytest.approx(99.98)
