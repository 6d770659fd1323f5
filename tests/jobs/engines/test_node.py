"""The processes of a node are found by what they announced, and nobody else's are."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_distbench.jobs.engines.node import Node, announce
from pytest_distbench.records.elastic import NODE_VARIABLE

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]

# A word of its own: the whole machine is searched for it, and these tests may run beside themselves.
MINE = uuid.uuid4().hex


@pytest.fixture
def three() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The third carries this process's word in its environment."""
    processes = [subprocess.Popen(SLEEP, env={**os.environ, NODE_VARIABLE: word}) for word in ("a", "b", MINE)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.spawn
def test_a_node_is_what_announced_itself_and_what_carries_its_word(
    three: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    agent, worker, escaped = three
    node = Node(agent.pid, MINE, tmp_path / "pids")
    for process in (agent, worker):
        announce(tmp_path / "pids", process.pid)

    assert {p.pid for p in node.members()} == {agent.pid, worker.pid, escaped.pid}
    node.kill_workers()
    assert [p.wait(timeout=60) for p in (worker, escaped)] == [-9, -9]
    assert {p.pid for p in node.members()} == {agent.pid}
    node.end()
    assert agent.wait(timeout=60) is not None


@pytest.mark.spawn
def test_a_process_id_that_was_given_away_again_is_none_of_a_nodes(
    three: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """It was announced by a process that began at another time."""
    announce(tmp_path / "pids", three[0].pid)
    [line] = (tmp_path / "pids").read_text().splitlines()
    (tmp_path / "pids").write_text(f"{line}1\nno line of ours\n{three[1].pid} \n")
    node = Node(three[0].pid, "other", tmp_path / "pids")

    assert node.members() == []
    assert Node(0, "nobody's", tmp_path / "none").members() == []


def test_one_that_has_ended_is_not_announced(tmp_path: Path) -> None:
    announce(tmp_path / "pids", 2**30)

    assert not (tmp_path / "pids").exists()
