"""A server: it loads, says that it is ready, and stays until it is asked to go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.plans import make_plan
from support.pools import SERVED
from support.processes import wait_for

from pytest_distbench.elastic.pool import Servers
from pytest_distbench.elastic.records import SERVING, Pool
from pytest_distbench.elastic.worker.training import RAISED
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Task
from pytest_distbench.records.wire import Event, EventReader

pytestmark = pytest.mark.spawn

BODIES = """
def load(outputs):
    import torch

    print("loads")
    return torch.nn.Linear(8, outputs)
"""


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    (tmp_path / "bodies.py").write_text(BODIES)
    body = BodyReference(file=str(tmp_path / "bodies.py"), function="load")
    made = make_plan(tmp_path, work=Pool(sharing=SERVED, tasks={SERVING: Task(body=body, params={"outputs": 3})}))
    made.files.plan.write_bytes(msgspec.json.encode(made))
    return made


@pytest.fixture
def servers(plan: LaunchPlan) -> Iterator[Servers]:
    made = Servers(plan.files, variables=os.environ)
    yield made
    made.close()


def events(plan: LaunchPlan) -> list[Event]:
    return EventReader(plan.files.pool_timeline).read() if plan.files.pool_timeline.exists() else []


def test_it_says_that_it_is_ready_and_stays_until_it_is_asked_to_go(plan: LaunchPlan, servers: Servers) -> None:
    servers.start(1)
    wait_for(lambda: bool(events(plan)))

    assert [(type(line), line.slot) for line in events(plan) if line.what == "server_ready"] == [(Event, 1)]
    assert servers.poll() == {}
    assert "loads" in servers.log(1)

    servers.stop(1)
    ended: dict[int, int] = {}
    wait_for(lambda: bool(ended.update(servers.poll()) or ended))
    assert list(ended) == [1]


def test_an_exception_of_the_body_is_reported(plan: LaunchPlan, servers: Servers) -> None:
    Path(plan.expect(Pool).tasks[SERVING].body.file).write_text("def load(outputs): raise MemoryError(f'{outputs} GB')")
    servers.start(0)
    ended: dict[int, int] = {}
    wait_for(lambda: bool(ended.update(servers.poll()) or ended))
    [line] = events(plan)

    assert ended == {0: RAISED}
    assert line.what == "server_failed"
    assert (line.slot, line.error.splitlines()[0]) == (0, "MemoryError: 3 GB")
