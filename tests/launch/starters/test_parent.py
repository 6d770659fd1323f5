"""A node's process that has torch loaded, and the controller's end of the connection to it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from typing import Any, cast

import pytest

from pytest_distbench.launch.site.dial import Hello
from pytest_distbench.launch.starters import parent as parents
from pytest_distbench.launch.starters.calls import Connection
from pytest_distbench.launch.starters.parent import END, FORK, GONE, Parent


class MadeUpStep:
    pid = 7
    is_alive = True


@pytest.fixture
def ends() -> Iterator[tuple[Parent, socket.socket]]:
    """Ours and the parent's."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    hello = Hello(secret="", host="n1", address="127.0.0.1", port=1)
    with ours, theirs:
        yield Parent(Connection(ours, hello), cast(Any, MadeUpStep())), theirs


def test_it_can_fork_a_relay_when_the_one_before_has_gone(ends: tuple[Parent, socket.socket]) -> None:
    parent, theirs = ends
    assert parent.is_idle

    parent.fork_relay()
    assert theirs.recv(9) == FORK
    assert not parent.is_idle
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(0.01)

    theirs.sendall(GONE)
    assert parent.wait(10) == 0
    assert parent.is_idle
    assert parent.wait(0.01) == 0  # nothing is waited for twice


def test_a_relay_that_does_not_end_is_ended_by_its_parent_which_stays(ends: tuple[Parent, socket.socket]) -> None:
    parent, theirs = ends
    parent.fork_relay()
    theirs.sendall(GONE)
    parent.kill()

    assert theirs.recv(9) == FORK + END
    assert parent.is_idle


def test_a_parent_that_does_not_even_end_its_relay_is_hung_up_on(
    ends: tuple[Parent, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parents, "_END_S", 0.01)
    parent, theirs = ends
    parent.fork_relay()
    parent.kill()

    assert theirs.recv(9) == FORK + END
    assert theirs.recv(9) == b""
    assert not parent.is_idle
    assert parent.wait(0.01) == 0


def test_a_parent_that_has_gone_is_not_idle_and_not_waited_for(ends: tuple[Parent, socket.socket]) -> None:
    parent, theirs = ends
    parent.fork_relay()
    theirs.close()

    assert parent.wait(10) == 0
    assert not parent.is_idle
