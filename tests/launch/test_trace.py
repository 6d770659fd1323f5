"""One file of the traces of all ranks and both sides."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.plans import make_plan
from support.traces import arrow, described, event, loop_trace

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.trace import Side, read_traces, write_file


def written(*sides: Side) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(write_file(sides)))
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def two_sides() -> tuple[Side, Side]:
    """Two ranks each, of the same process ids: this tree ran a minute later."""

    def ranks(at: float) -> list[Any]:
        return [
            loop_trace(*arrow(1, at + 10, at + 20), described("process_name", name="python"), rank=rank, steps=[step])
            for rank, step in enumerate([(at, at + 90), (at + 5, at + 90)])
        ]

    return Side(name="base", note="(abc1234)", traces=ranks(1e12)), Side(name="this tree", traces=ranks(1e12 + 6e7))


def test_each_rank_of_each_side_is_a_process_in_the_order_of_sides_and_ranks() -> None:
    events = written(*two_sides())
    places = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    in_order = [name for _, name in sorted(names(events).items(), key=lambda item: places[item[0]])]

    assert in_order == ["base rank 0 (abc1234)", "base rank 1 (abc1234)", "this tree rank 0", "this tree rank 1"]
    assert len({e["pid"] for e in events}) == 4


def test_sides_begin_together_and_ranks_keep_their_distance() -> None:
    events = written(*two_sides())
    begins = {names(events)[e["pid"]]: e["ts"] for e in events if e["name"] == "step #0"}

    assert list(begins.values()) == [0.0, 5.0, 0.0, 5.0]


def test_what_comes_before_the_first_iteration_does_not_shift_a_side() -> None:
    early = Side(name="base", traces=[loop_trace(event("load", 400, 410), steps=[(1000, 1100)])])
    events = written(early, Side(name="this tree", traces=[loop_trace(steps=[(5000, 5100)])]))
    found = [e["ts"] for e in events if e["name"] in ("load", "step #0")]

    assert sorted(found) == [0.0, 600.0, 600.0]


def test_an_arrow_of_one_rank_does_not_lead_to_another() -> None:
    ids = [e["id"] for e in written(*two_sides()) if e["ph"] in "sf"]

    assert len(ids) == 8
    assert all(ids.count(number) == 2 for number in ids)


def test_loops_of_a_rank_are_one_process_whose_arrows_are_told_apart() -> None:
    loops = [loop_trace(*arrow(1, at, at + 1), loop=f"loop{at}", steps=[(at, at + 9)]) for at in (10, 30)]
    events = written(Side(name="this tree", traces=loops))

    assert names(events) == {1: "this tree rank 0"}
    assert len({e["id"] for e in events if "id" in e}) == 2


def test_a_gpu_is_a_process_of_its_own_and_one_that_did_nothing_is_none() -> None:
    gpu = [described("process_labels", pid=pid, labels=f"GPU {pid}") for pid in (0, 1)]
    kernel = event("gemm", 10, 20, cat="kernel", pid=0)
    events = written(Side(name="this tree", traces=[loop_trace(*gpu, kernel, steps=[(0, 50)])]))

    assert sorted(names(events).values()) == ["this tree rank 0", "this tree rank 0 GPU 0"]


def test_without_iterations_a_side_begins_with_its_first_event() -> None:
    side = Side(name="this tree", traces=[loop_trace(event("all", 700, 800), loop="", steps=[])])

    assert side.origin == 700
    assert Side(name="this tree", traces=[]).origin == 0


def leave(folder: Path, *, rank: int, text: str, loops: str = '["step"]') -> None:
    files = make_plan(folder).files
    files.trace(rank, 0).write_text(text)
    files.loops(rank).write_text(loops)


def test_the_traces_of_ranks_are_read_with_their_loops(tmp_path: Path) -> None:
    for rank in (0, 1):
        about = {"ph": "i", "name": "Record Window End", "pid": "", "ts": 1}
        document = {"baseTimeNanoseconds": 7, "traceEvents": [event("step #0", 1, 2), about]}
        leave(tmp_path, rank=rank, text=json.dumps(document))
    found = read_traces(make_plan(tmp_path))

    assert [(trace.rank, trace.loop, len(trace.events)) for trace in found] == [(0, "step", 1), (1, "step", 1)]
    assert found[0].iterations() == [(1, 2)]


@pytest.mark.parametrize("text", ["", '{"traceEvents": [', "{}", "[]"])
def test_a_trace_that_is_not_whole_is_told_with_its_rank(tmp_path: Path, text: str) -> None:
    leave(tmp_path, rank=0, text='{"traceEvents": []}')
    leave(tmp_path, rank=1, text=text)

    with pytest.raises(ReadingError, match="the profiler's trace of rank 1 is not whole: "):
        read_traces(make_plan(tmp_path))


def test_a_rank_that_wrote_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match=r"rank 0 is not whole: .*loops0.json"):
        read_traces(make_plan(tmp_path))
