"""What goes over a launch's socket: variables of any bytes, and addresses of any length."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from pytest_distbench.records.wire import short_address, variables_from_wire, variables_to_wire


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
