"""A relay that calls the controller: at the first address that answers, with what it is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from pytest_distbench.launch.site import dial
from pytest_distbench.launch.site.dial import SECRET_VARIABLE, Hello, connect


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_the_first_address_that_answers_is_taken(listener: socket.socket) -> None:
    with connect(["no-such-host.invalid", "127.0.0.1"], listener.getsockname()[1]) as line:
        assert line.getpeername()[0] == "127.0.0.1"
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_where_none_answers_all_that_were_tried_are_told(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "_TRIES", 1)
    port = listener.getsockname()[1]
    listener.close()

    with pytest.raises(SystemExit, match=rf"at none of its addresses, port {port}: 127.0.0.1: Connection refused"):
        connect(["127.0.0.1"], port)


def test_it_says_who_it_is_and_ends_when_nobody_wants_it(listener: socket.socket) -> None:
    command = [sys.executable, "-m", "pytest_distbench.launch.site.dial", str(listener.getsockname()[1]), "127.0.0.1"]
    environment = {
        **os.environ, "SLURMD_NODENAME": "n7", SECRET_VARIABLE: "s",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    process = subprocess.Popen(command, env=environment)
    line, _ = listener.accept()
    with line, line.makefile("rb") as said:
        hello = msgspec.json.decode(said.readline(), type=Hello)

    assert (hello.host, hello.secret, hello.address) == ("n7", "s", "127.0.0.1")
    assert hello.port > 0
    assert process.wait(timeout=30) == 0
