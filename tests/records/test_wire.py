"""What goes over a launch's socket: variables of any bytes, and addresses of any length; and how long ranks wait."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from pytest_distbench.records.wire import (
    collective_s,
    heartbeat_s,
    short_address,
    start_s,
    store_s,
    variables_from_wire,
    variables_to_wire,
)


def test_variables_that_are_no_utf_8_survive_json() -> None:
    given = {"PATH": "/bin", "ODD": os.fsdecode(b"\xff\xfe"), "WORD": "gr\u00fc\u00df"}
    wired = json.loads(json.dumps(variables_to_wire(given)).encode())

    assert variables_from_wire(wired) == given


@pytest.mark.parametrize("length", [5, 200])
def test_a_socket_is_reached_at_its_short_address_however_long_its_path(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with short_address(folder / "s") as address:
            server.bind(address)
        server.listen()
        with short_address(folder / "s") as address:
            client.connect(address)
            assert len(os.fsencode(address)) <= 107

    assert (folder / "s").is_socket()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with short_address(tmp_path / ("x" * 200)):
        assert len(os.listdir("/proc/self/fd")) == before + 1

    assert len(os.listdir("/proc/self/fd")) == before


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


def test_torchs_limit_is_not_made_shorter_and_ten_thousand_ranks_have_longer_to_come_up() -> None:
    assert heartbeat_s(10.0) == 480.0

    assert start_s(10_000) - start_s(2) == pytest.approx(99.98)
