"""Every engine of the table does what the contract says, with real nodes; and of a job that dies nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.elastic_jobs import CHECKPOINT_EVERY, elastic_plan
from support.processes import wait_for

from pytest_distbench.elastic import crash, join, kill, leave, stop
from pytest_distbench.elastic.engines import ENGINES
from pytest_distbench.elastic.launch import launch_elastic
from pytest_distbench.elastic.records import SLOT_VARIABLE, Change, runs_of, unaccounted_s
from pytest_distbench.launch.supervise import Side
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import read_events

pytestmark = pytest.mark.spawn

ALL_KINDS = [crash(at_s=0.2, slot=1), leave(at_s=0.4), join(at_s=0.6), kill(at_s=0.8, slot=0), stop(at_s=1, for_s=0.5)]
"""Changes in the order of their seconds."""
LATER = [stop(at_s=1000, for_s=1)]


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        *(
            pytest.param(name, ALL_KINDS, id=name, marks=pytest.mark.nightly if name == "stock" else ())
            for name in ENGINES
        ),
        pytest.param("stock", ALL_KINDS[1:3], id="stock leaves and joins", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.usefixtures("closed_doors")
def test_an_engine_carries_out_every_kind_of_change_and_each_is_measured(
    engine: str, changes: list[Change], tmp_path: Path
) -> None:
    record = launch_elastic(elastic_plan(tmp_path, engine, changes, nodes=(1, 2)), Side())

    assert (record.outcome, record.reason) == ("passed", "")
    [run] = runs_of(record.events)
    found = run.changes
    sizes = {"crash": (2, 2), "leave": (2, 1), "join": (1, 2), "kill": (2, 1), "stop": (1, 1)}
    assert [(c.kind, c.before, c.after) for c in found] == [(c.kind, *sizes[c.kind]) for c in changes]
    for change in found:
        assert change.stall_s is not None
        assert change.recovery_s is not None
        assert change.stall_s > 0
        assert 0 <= change.steps_redone <= CHECKPOINT_EVERY
        assert abs(unaccounted_s(change) or 0) < 0.1 * change.recovery_s or change.kind == "stop"
    values = {m.name: m.value for m in record.measurements}
    assert (values["samples_skipped"], values["samples_repeated"]) == (0, 0)
    seeds = [path.read_text() for path in tmp_path.glob("seed-*")]
    assert len(set(seeds)) == len(seeds) > len(changes)  # also where workers are forked from one process
    check_nothing_left(tmp_path)


@pytest.mark.parametrize("engine", [pytest.param("stock", marks=pytest.mark.nightly), "fast"])
def test_an_agent_that_dies_alone_is_reported_though_its_worker_lives_on(engine: str, tmp_path: Path) -> None:
    """Its worker trains on, and so nobody else would notice."""

    def kill_agent(plan: LaunchPlan) -> None:
        os.kill(agent_of(plan, slot=1), signal.SIGKILL)

    record = run_until_stable(elastic_plan(tmp_path, engine, LATER, nodes=(1, 2)), kill_agent)

    assert record.outcome == "failed"
    assert record.reason.startswith("the agent of slot 1 ended with exit code -9 by itself")
    check_nothing_left(tmp_path)


def test_a_parent_that_dies_is_reported_and_its_children_end(tmp_path: Path) -> None:
    def kill_parent(plan: LaunchPlan) -> None:
        parent = psutil.Process(agent_of(plan, slot=1)).parent()
        assert parent is not None
        parent.kill()

    record = run_until_stable(elastic_plan(tmp_path, "fast", LATER, nodes=(1, 2)), kill_parent)

    assert record.reason.startswith("the process that all agents and workers are forked from has ended")
    check_nothing_left(tmp_path)


def run_until_stable(plan: LaunchPlan, act: Callable[[LaunchPlan], None]) -> LaunchRecord:
    """Launch a job, and do something to it when its nodes train."""

    def wait_and_act() -> None:
        wait_for(lambda: plan.files.timeline.exists() and '"what":"stable"' in plan.files.timeline.read_text())
        act(plan)

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    record = launch_elastic(plan, Side())
    thread.join()
    return record


def agent_of(plan: LaunchPlan, *, slot: int) -> int:
    """The process id of the agent that was started first in a slot."""
    if forked := processes_of(plan, "pytest_distbench.elastic.controller")[
        3:
    ]:  # guardian, controller and parent are above
        workers = {line.pid for line in read_events(plan.files.timeline) if line.what == "started"}
        return [process.pid for process in forked if process.pid not in workers][slot]
    agents = [p for p in processes_of(plan, "torch.distributed.run") if p.environ()[SLOT_VARIABLE] == str(slot)]
    return agents[0].pid


def processes_of(plan: LaunchPlan, module: str) -> list[psutil.Process]:
    """Those that run a module with this plan, parents first."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments = process.cmdline()
            if module in arguments and str(plan.files.plan) in arguments:
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def check_nothing_left(folder: Path) -> None:
    """No file that names what ran, and no socket; the fixture that looks for processes does the rest."""
    assert not (folder / "plan.json").exists()
    assert [path for path in folder.rglob("*") if path.is_socket()] == []


def test_a_controller_that_dies_takes_the_store_and_all_nodes_with_it(tmp_path: Path) -> None:
    def kill_controller(plan: LaunchPlan) -> None:
        processes_of(plan, "pytest_distbench.elastic.controller")[
            1
        ].kill()  # the guardian is above, what it forked below

    record = run_until_stable(elastic_plan(tmp_path, "fast", LATER, nodes=(1, 2)), kill_controller)

    assert record.reason.startswith("the controller of the elastic job was killed by SIGKILL")
    check_nothing_left(tmp_path)
