"""The stock engine: each node is a torchrun command, as users start it on each of their machines."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support.elastic_jobs import job_plan
from support.processes import has_ended, wait_for
from support.timelines import JOB
from torch.distributed.run import get_args_parser

from pytest_distbench.elastic import join
from pytest_distbench.elastic.controller import Controller
from pytest_distbench.elastic.engines import CannotGoOn
from pytest_distbench.elastic.engines.nodes import Node, TorchrunEngine, prints_events, rendezvous_seconds
from pytest_distbench.elastic.records import NODE_VARIABLE, SLOT_VARIABLE
from pytest_distbench.records.plan import BodyReference
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event

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
def test_a_node_is_what_was_forked_for_it_and_what_carries_its_word(three: list[subprocess.Popen[bytes]]) -> None:
    agent, worker, escaped = three
    node = Node(agent.pid, MINE, lambda pid: [pid, worker.pid])

    assert {p.pid for p in node.members()} == {agent.pid, worker.pid, escaped.pid}
    node.kill_workers()
    assert [p.wait(timeout=60) for p in (worker, escaped)] == [-9, -9]
    assert {p.pid for p in node.members()} == {agent.pid}
    node.end()
    assert agent.wait(timeout=60) is not None


EVENT = (
    '{"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, "metadata": '
    '{"run_id": "x", "group_rank": 0, "duration_ms": 1250, "agent_restarts": 1}}'
)


def test_the_time_of_each_rendezvous_is_read_of_an_agents_log() -> None:
    log = "\n".join(["W1122 master warning", EVENT, EVENT.replace("RENDEZVOUS", "START"), "{torn RENDEZVOUS", EVENT])

    assert rendezvous_seconds(log) == [1.25, 1.25]


def test_each_node_has_a_slot_of_its_own_in_the_arguments_of_a_script(tmp_path: Path) -> None:
    body = BodyReference(file="train.py", arguments=["--checkpoint=ck{slot}.pt"])
    engine = TorchrunEngine(job_plan(tmp_path, JOB, body=body))

    assert engine._command(1)[-2:] == ["train.py", "--checkpoint=ck1.pt"]


def test_this_torchrun_prints_its_events_when_asked() -> None:
    assert prints_events() == ("--event-log-handler" in get_args_parser().format_help())


BODY = """
def body(rank):
    import time
    import torch

    training = rank.training(model=torch.nn.Linear(1, 1))
    for _ in training.batches(samples=1000, batch=1, epochs=100):
        time.sleep(0.02)
        rank.barrier()
"""


@pytest.mark.spawn
@pytest.mark.skipif("DISTBENCH_CANARY" not in os.environ, reason="takes a minute; set DISTBENCH_CANARY to ask torch")
def test_torch_still_hangs_on_scale_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails torch has mended it: then HANGS_ON_SCALE_UP can go, and what docs/elastic.md says of it."""
    (tmp_path / "body.py").write_text(BODY)
    (tmp_path / "checkpoints").mkdir()
    job = replace(JOB, plan=[join(at_s=1)], timers={**JOB.timers, "settle_s": 40})
    body = BodyReference(file=str(tmp_path / "body.py"), function="body")
    plan = job_plan(tmp_path, job, body=body, python_path=sys.path)
    plan.files.plan.write_bytes(msgspec.json.encode(plan))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine = TorchrunEngine(plan, workaround={})

    with pytest.raises(CannotGoOn, match=r"not stable 40 s after join\(at_s=1\).*Hang on join"):
        Controller(job, engine, plan.files.timeline).run()


SHELL = f"""
trap 'kill $!; exit 7' TERM
echo '{EVENT}'
echo slot ${SLOT_VARIABLE}
sleep 60 &
wait $!
echo over
"""


class Shells(TorchrunEngine):
    """Nodes that are a shell each, with a child in its worker's place."""

    def _command(self, slot: int) -> list[str]:
        return ["bash", "-c", SHELL]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Shells]:
    made = Shells(job_plan(tmp_path, JOB))
    yield made
    made.close()


@pytest.fixture
def children(engine: Shells) -> Callable[[int], list[psutil.Process]]:
    """Joins a node; returns what is below its agent, once something is."""

    def find(slot: int) -> list[psutil.Process]:
        engine.join(slot)
        agent = psutil.Process(engine._agents[slot].pid)
        wait_for(agent.children)
        return agent.children()

    return find


def test_events_and_the_end_of_an_agent_are_reported_once(engine: Shells, children: Callable) -> None:
    children(1)
    engine.leave(1)
    told: list[Event] = []
    wait_for(lambda: told.extend(engine.poll()) or len(told) > 1)

    assert (told[0].what, told[0].slot, told[0].seconds) == ("rendezvous", 1, 1.25)
    assert (told[1].what, told[1].slot, told[1].code) == ("agent_ended", 1, 7)
    assert engine.poll() == []
    assert "slot 1" in engine.log(1)


def test_a_crash_ends_the_worker_and_not_its_agent(engine: Shells, children: Callable) -> None:
    children(0)
    engine.crash(0)
    wait_for(lambda: engine._agents[0].poll() is not None)

    assert "over" in engine.log(0)


def test_a_node_that_is_lost_loses_all_its_processes(engine: Shells, children: Callable) -> None:
    [worker] = children(0)
    engine.kill(0)

    assert has_ended(worker)
    assert engine._agents[0].poll() == -9


def test_a_node_stands_still_with_all_its_processes_and_goes_on(engine: Shells, children: Callable) -> None:
    [worker] = children(0)
    engine.stop(0)
    wait_for(lambda: worker.status() == psutil.STATUS_STOPPED)
    engine.go_on(0)
    wait_for(lambda: worker.status() != psutil.STATUS_STOPPED)
