"""A step and who calls from its nodes, with a stand-in for srun."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.srun import ALL, write_srun

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.starters import step
from pytest_distbench.launch.starters.step import Connection, Step


@pytest.fixture(autouse=True)
def reach_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(step, "addresses", lambda: ["127.0.0.1"])


def relay(port: int, addresses: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest_distbench.launch.site.dial", str(port), *addresses]


@contextlib.contextmanager
def started(tmp_path: Path, *nodes: str) -> Iterator[Step]:
    made = Step(nodes, relay, log=tmp_path / "log", variables=dict(os.environ), session="s")
    try:
        yield made
    finally:
        made.kill()
        assert not made.is_alive


@contextlib.contextmanager
def called(
    made: Step, *, limit_s: float = 60.0, among: dict[str, socket.socket] | None = None
) -> Iterator[dict[str, Connection]]:
    """Those who have called from its nodes; they are hung up on."""
    calls: dict[str, Connection] = {}
    try:
        made.take_calls(calls, made.nodes, who="relay", limit_s=limit_s, among=among)
        yield calls
    finally:
        for caller in calls.values():
            caller.line.close()


def test_the_relays_of_a_step_call_and_say_who_they_are(tmp_path: Path) -> None:
    write_srun(tmp_path, ALL)
    with started(tmp_path, "n1", "n2") as made, called(made) as calls:
        assert sorted(calls) == ["n1", "n2"]
        assert {caller.hello.address for caller in calls.values()} == {"127.0.0.1"}
        assert len({caller.hello.port for caller in calls.values()}) == 2


def test_a_step_that_ends_before_its_relays_call_is_told_with_what_srun_said(tmp_path: Path) -> None:
    write_srun(tmp_path, "echo srun: error: Invalid partition >&2; exit 1")
    with (
        started(tmp_path, "n1") as made,
        pytest.raises(LauncherError, match=r"ended before its relay called: .*Invalid partition"),
        called(made),
    ):
        pass


def test_a_node_from_which_nobody_calls_is_named(tmp_path: Path) -> None:
    write_srun(tmp_path, 'for node in ${nodes% *}; do SLURMD_NODENAME=$node "$@" & done; sleep 60')
    with (
        started(tmp_path, "n1", "n2") as made,
        pytest.raises(LauncherError, match="no relay has called from n2 within 3 s"),
        called(made, limit_s=3.0),
    ):
        pass


def test_a_node_whose_other_connection_breaks_is_not_waited_for(tmp_path: Path) -> None:
    write_srun(tmp_path, "sleep 60")
    ours, theirs = socket.socketpair()
    theirs.close()
    began = time.monotonic()
    with (
        ours,
        started(tmp_path, "n1") as made,
        pytest.raises(LauncherError, match="host n1 was lost before its relay called"),
        called(made, among={"n1": ours}),
    ):
        pass
    assert time.monotonic() - began < 60.0


def test_a_stranger_who_calls_is_not_heard(tmp_path: Path) -> None:
    write_srun(tmp_path, f'DISTBENCH_RELAY_SECRET=wrong SLURMD_NODENAME=n1 "$@" & {ALL}')
    with started(tmp_path, "n1") as made, called(made) as calls:
        assert list(calls) == ["n1"]


def test_a_step_that_is_killed_has_ended(tmp_path: Path) -> None:
    write_srun(tmp_path, "exec sleep 60")
    with started(tmp_path, "n1") as made:
        assert made.is_alive
        made.kill()

        assert made.wait(0.0) == -15
