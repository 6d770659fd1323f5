"""A pool that never ran: two jobs on two slots under the elastic policy, and a training that yields to a serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pytest_distbench.elastic.measures import measure_pool
from pytest_distbench.elastic.records import SERVING, Sharing, event
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event
from support.timelines import JOB, Timeline, but

ONE = replace(JOB, least=1, most=1)
POOL = Sharing(
    slots=2,
    policy="elastic",
    jobs=[replace(ONE, name="A", submit_s=0), replace(JOB, name="B", submit_s=2)],
)
SERVED = Sharing(
    slots=2,
    policy="elastic",
    jobs=[replace(JOB, name="train", submit_s=0)],
    demand=[(2, 1), (6, 0)],
)


def shared() -> tuple[list[Event], Mapping[str, Sequence[Event]]]:
    """A trains in slot 0 from 10 to 19 s; B in slot 1 from 15 s on, in both from 24 s, until 29 s."""
    a, b = Timeline(), Timeline()
    a.begin(8.0, 0)
    a.generation(0, [0], first=10.0, steps=10)
    a.agent_ended(19.5, 0)
    b.begin(12.0, 1)
    b.generation(0, [1], first=15.0, steps=6)
    b.change(20.0, 0, "join", [0], [0, 1])
    b.generation(1, [0, 1], first=24.0, steps=6, resumed=6)
    b.stable(26.0, 0, 1, 2)
    lines: list[Event] = [
        event("submitted", t=8.0, job="A"),
        event("granted", t=8.0, owner="A", slot=0),
        event("clock_began", t=10.0),
        event("submitted", t=12.0, job="B"),
        event("granted", t=12.0, owner="B", slot=1),
        event("freed", t=19.5, owner="A", slot=0),
        event("ended", t=19.5, job="A"),
        event("granted", t=20.0, owner="B", slot=0),
        event("freed", t=29.5, owner="B", slot=1),
        event("freed", t=30.0, owner="B", slot=0),
        event("ended", t=30.0, job="B"),
    ]
    return lines, {"A": sorted(a.lines, key=lambda x: x.t), "B": sorted(b.lines, key=lambda x: x.t)}


def served() -> tuple[list[Event], Mapping[str, Sequence[Event]]]:
    """Trains in two slots from 10 s, in one from 15 s; the other serves from 14 to 17 s."""
    train = Timeline()
    train.begin(8.0, 0, 1)
    train.generation(0, [0, 1], first=10.0, steps=3)
    train.change(12.0, 0, "leave", [1], [0])
    train.agent_ended(12.5, 1)
    train.generation(1, [0], first=15.0, steps=15, resumed=3)
    train.stable(17.0, 0, 1, 1)
    lines: list[Event] = [
        event("submitted", t=8.0, job="train"),
        event("granted", t=8.0, owner="train", slot=0),
        event("granted", t=8.0, owner="train", slot=1),
        event("clock_began", t=10.0),
        event("demanded", t=12.0, slots=1),
        event("asked", t=12.0, owner="train", slot=1),
        event("freed", t=12.5, owner="train", slot=1),
        event("granted", t=12.5, owner=SERVING, slot=1),
        event("server_ready", t=14.0, slot=1),
        event("demanded", t=16.0, slots=0),
        event("asked", t=16.0, owner=SERVING, slot=1),
        event("freed", t=17.0, owner=SERVING, slot=1),
        event("freed", t=30.0, owner="train", slot=0),
        event("ended", t=30.0, job="train"),
    ]
    return lines, {"train": sorted(train.lines, key=lambda x: x.t)}


def launch_of(pool: Sharing, *, recorded_as: Sharing | None = None) -> LaunchRecord:
    """A launch of :data:`POOL` or :data:`SERVED`; its record may be of another one."""
    events, measurements = measure_pool(pool, *(served() if pool.demand else shared()))
    if recorded_as is not None:
        events[0] = but(events[0], sharing=msgspec.to_builtins(recorded_as))
    return LaunchRecord(index=0, outcome="passed", wall_s=25.0, events=events, measurements=measurements)
