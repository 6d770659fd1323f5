"""A probe over the loopback of this machine, whose hosts are all this one."""

from __future__ import annotations

import contextlib

import pytest

from pytest_distbench.machine import network as module
from pytest_distbench.machine.network import probe
from pytest_distbench.records.network import Network


def test_each_host_sends_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    def enter(host: int) -> contextlib.AbstractContextManager[None]:
        entered.append(host)
        return contextlib.nullcontext()

    monkeypatch.setattr(module, "host_address", lambda host: "127.0.0.1")
    found = probe(enter, 3, Network())

    assert [(p.source, p.target) for p in found] == [(0, 1), (1, 2), (2, 0)]
    assert entered == [1, 0, 2, 1, 0, 2], "the listener is the target's, the connection the source's"
    assert all(p.rate > 1e6 and 0 < p.round_trip_s < 1 for p in found)


def test_a_host_alone_sends_nowhere() -> None:
    def enter(host: int) -> contextlib.AbstractContextManager[None]:
        raise AssertionError(host)

    assert probe(enter, 1, Network()) == []
