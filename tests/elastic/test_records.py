"""Elastic jobs, pools of them, what became of both, and their timelines: lines of JSON, each whole."""

from __future__ import annotations

from pathlib import Path

from support.pools import POOL, SERVED
from support.timelines import JOB

from pytest_distbench.elastic import cycle, join, kill, stop
from pytest_distbench.elastic.records import Demand, ElasticJob, event, unaccounted_s, wanted_at
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import EventReader, append, read_events


def test_plans_jobs_and_pools_are_told_in_words() -> None:
    changes = [join(at_s=2, nodes=2), kill(at_step=90, slot=0), stop(at_s=4, for_s=1.5)]
    told = "join(at_s=2, nodes=2), kill(at_step=90, slot=0), stop(at_s=4, for_s=1.5)"
    assert replace(JOB, plan=changes).planned == told
    told = "cycle(period_s=8, on=1, off=1, times=3, by='kill')"
    assert replace(JOB, plan=cycle(8, times=3, by="kill")).planned == told
    assert JOB.planned == "no change"

    job = ElasticJob(
        least=1, most=2, start=1, plan=cycle(8), timers={"last_call_s": 1, "keep_alive_s": 0.5}, checkpoint_every=20
    )
    assert str(job) == (
        "1 to 2 nodes, 1 at the start, cycle(period_s=8, on=1, off=1); checkpoint every 20 steps; engine stock, "
        "last_call_s=1, keep_alive_s=0.5"
    )
    assert "engine stock (in place of fast: why), last" in str(replace(job, in_place_of="fast: why"))

    assert str(POOL) == "2 slots, elastic; A on 1 nodes from 0 s; B on 1 to 2 nodes from 2 s; engine stock"
    assert str(SERVED).endswith("engine stock; serving on 1 from 2 s, 0 from 6 s")
    assert str(replace(POOL, compute="synthetic", cores=2)).endswith("; synthetic compute; oversubscribed: 2 cores")

    assert [wanted_at(SERVING, at_s) for at_s in (0, 2, 51.9, 52, 99)] == [0, 1, 1, 3, 0]

    change = event(
        "change", t=1.0, index=0, kind="kill", slots=[1], before=2, recovery_s=5.0, parts={"detect": 1.0, "import": 3.5}
    )
    assert unaccounted_s(change) == 0.5
    assert unaccounted_s(event("change", t=1.0, index=0, kind="kill", slots=[1], before=2)) is None


SERVING: Demand = [(2, 1), (52, 3), (62, 0)]


LATER = event("saved", t=2.0, slot=0, generation=1, step=20, seconds=0.1)


def test_a_reader_gives_each_line_once_and_passes_over_what_is_none(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    reader = EventReader(path)
    assert reader.read() == []
    append(path, LATER)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    assert reader.read() == [LATER]
    path.write_bytes(whole + whole)
    assert reader.read() == [LATER]
    assert reader.read() == []

    # A worker that is killed while it writes leaves a part of a line, behind which another one may write
    path = tmp_path / "timeline"
    path.write_bytes(b'{"what":"sav\n')
    append(path, LATER)
    assert read_events(path) == [LATER]


def test_lines_are_read_as_they_come_and_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    reader = EventReader(path)
    granted = event("granted", t=1.0, owner="A", slot=0)
    ready = event("server_ready", t=2.0, slot=1)
    append(path, granted)
    first = reader.read()
    path.write_bytes(path.read_bytes() + b'{"what":"granted","t":\n')
    append(path, ready)

    assert (first, reader.read(), reader.read()) == ([granted], [ready], [])
