"""Nodes that are processes: here a shell each, with a child in its worker's place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.plans import make_plan
from support.processes import wait_for
from support.timelines import JOB

from pytest_distbench.jobs.engines.agents import AgentEngine
from pytest_distbench.jobs.engines.contract import EngineSetup
from pytest_distbench.records.elastic import SLOT_VARIABLE
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

SHELL = f"""
trap 'kill $!; exit 7' TERM
echo rendezvous 2
echo slot ${SLOT_VARIABLE}
sleep 60 &
wait $!
echo over
"""


class Shells(AgentEngine):
    def _command(self, slot: int) -> list[str]:
        return ["bash", "-c", SHELL]

    def _rendezvous_seconds(self, log: str) -> list[float]:
        return [float(line.split()[1]) for line in log.splitlines() if line.startswith("rendezvous")]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Shells]:
    made = Shells(EngineSetup(job=JOB, files=make_plan(tmp_path).files, variables=dict(os.environ)), {}, time.monotonic)
    yield made
    made.close()


@pytest.fixture
def children(engine: Shells) -> Callable[[int], list[psutil.Process]]:
    """What a node has started."""

    def find(slot: int) -> list[psutil.Process]:
        return psutil.Process(engine._agents[slot].pid).children()

    return find


def test_what_agents_tell_is_told_once_and_their_end_too(engine: Shells, children: Callable) -> None:
    engine.join(1)
    wait_for(lambda: children(1))
    engine.leave(1)
    told: list[Rendezvous | AgentEnded] = []
    wait_for(lambda: told.extend(engine.poll()) or len(told) > 1)

    assert isinstance(told[0], Rendezvous)
    assert (told[0].slot, told[0].seconds) == (1, 2.0)
    assert isinstance(told[1], AgentEnded)
    assert (told[1].slot, told[1].code) == (1, 7)
    assert engine.poll() == []
    assert "slot 1" in engine.log(1)


def test_a_crash_ends_the_worker_and_not_its_agent(engine: Shells, children: Callable) -> None:
    engine.join(0)
    wait_for(lambda: children(0))
    engine.crash(0)
    wait_for(lambda: engine._agents[0].poll() is not None)

    assert "over" in engine.log(0)


def test_a_node_that_is_lost_loses_all_its_processes(engine: Shells, children: Callable) -> None:
    engine.join(0)
    wait_for(lambda: children(0))
    [worker] = children(0)
    engine.kill(0)

    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert engine._agents[0].poll() == -9


def test_a_node_stands_still_with_all_its_processes_and_goes_on(engine: Shells, children: Callable) -> None:
    engine.join(0)
    wait_for(lambda: children(0))
    [worker] = children(0)
    engine.stop(0)
    wait_for(lambda: worker.status() == psutil.STATUS_STOPPED)
    engine.go_on(0)
    wait_for(lambda: worker.status() != psutil.STATUS_STOPPED)
