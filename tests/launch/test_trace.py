"""The traces of torch's profiler: one file of all ranks, and how busy they were with communication."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.plans import make_plan

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch import trace as module
from pytest_distbench.launch.trace import Event, LoopTrace, Side, busy_communication, origin, read_traces, write_ranks
from pytest_distbench.records.iteration import iteration_name


def event(name: str, begin: float, end: float, *, cat: str = "user_annotation", pid: int = 7, **more: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": begin, "dur": end - begin, **more}


def described(what: str, pid: int = 7, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": 0, "ts": 1.0, "args": args}


def arrow(number: int, begin: float, end: float) -> list[Event]:
    both = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "tid": 1, "id": number}
    return [{"ph": "s", "ts": begin, **both}, {"ph": "f", "bp": "e", "ts": end, **both}]


def loop_trace(*events: Event, rank: int = 0, loop: str = "step", steps: list[tuple[float, float]]) -> LoopTrace:
    """A rank whose iterations began and ended so, in microseconds, and what else was seen of it."""
    own = [event(iteration_name(loop, i), *step) for i, step in enumerate(steps)]
    return LoopTrace(rank=rank, loop=loop, events=[*own, *events])


def test_what_overlaps_is_counted_once() -> None:
    assert module.union(iter([(5.0, 9.0), (0.0, 4.0), (2.0, 3.0), (3.0, 6.0), (20.0, 21.0)])) == 10.0
    assert module.union(iter([])) == 0.0


def test_collectives_at_once_are_busy_once_and_add_up_by_name() -> None:
    """Two of 40 us that overlap by 20 us, in one of two iterations; the other rank is busy for 20 us."""
    first = loop_trace(
        event("gloo:all_reduce", 10, 50), event("gloo:all_gather", 30, 70, pid=7), steps=[(0, 100), (200, 300)]
    )
    second = loop_trace(event("gloo:all_reduce", 210, 230), rank=1, steps=[(0, 100), (200, 300)])
    found = busy_communication([first, second])["step"]

    assert found.ranks_s == pytest.approx([30e-6, 10e-6])
    assert found.totals_s == pytest.approx({"all_reduce": 15e-6, "all_gather": 10e-6})
    assert (found.iterations, found.iteration_s) == (2, pytest.approx(100e-6))


def test_what_lies_between_iterations_is_the_plugin_s_and_the_call_only_enqueues() -> None:
    trace = loop_trace(
        event("gloo:barrier", 110, 190),
        event("gloo:all_reduce", 90, 120),
        event("c10d::allreduce_", 20, 60, cat="cpu_op"),
        steps=[(0, 100), (200, 300)],
    )
    [found] = busy_communication([trace]).values()

    assert found.ranks_s == pytest.approx([5e-6])
    assert found.totals_s == pytest.approx({"all_reduce": 5e-6})


def test_a_kernel_of_nccl_belongs_to_the_iteration_that_enqueued_it() -> None:
    """On the device it runs after the host's iteration. The plugin's own, which aligns devices, was enqueued before."""

    def kernel(number: int, begin: float, end: float, **args: object) -> dict[str, object]:
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return event(name, begin, end, cat="kernel", pid=0, args={"correlation": number, **args})

    def enqueued(number: int, at: float) -> dict[str, object]:
        return event("cudaLaunchKernelExC", at, at + 5, cat="cuda_runtime", args={"correlation": number})

    trace = loop_trace(
        enqueued(1, -20),
        kernel(1, 0, 30),
        enqueued(2, 10),
        kernel(2, 150, 190, **{"Collective name": "allreduce"}),
        enqueued(3, 20),
        kernel(3, 160, 200),
        event("nccl:all_reduce", 10, 15),
        event("gemm", 60, 90, cat="kernel", pid=0, args={"correlation": 9}),
        steps=[(0, 100)],
    )
    [found] = busy_communication([trace]).values()

    assert found.ranks_s == pytest.approx([50e-6])
    assert found.totals_s == pytest.approx({"allreduce": 40e-6, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 40e-6})


def test_a_loop_without_communication_has_no_busy_communication() -> None:
    whole = loop_trace(event("gloo:all_reduce", 0, 9), loop="", steps=[])

    assert busy_communication([loop_trace(steps=[(0, 1)]), whole]) == {}


def written(*sides: Side) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(module.write_file(sides)))
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def two_sides() -> tuple[Side, Side]:
    """Two ranks per side, with the same process ids; the candidate ran a minute later."""

    def ranks(at: float) -> list[Any]:
        return [
            loop_trace(*arrow(1, at + 10, at + 20), described("process_name", name="python"), rank=rank, steps=[step])
            for rank, step in enumerate([(at, at + 90), (at + 5, at + 90)])
        ]

    return ("base", "(abc1234)", ranks(1e12)), ("candidate", "", ranks(1e12 + 6e7))


def test_each_rank_of_each_side_is_a_process_and_sides_begin_together() -> None:
    events = written(*two_sides())
    places = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    in_order = [name for _, name in sorted(names(events).items(), key=lambda item: places[item[0]])]

    assert in_order == ["base rank 0 (abc1234)", "base rank 1 (abc1234)", "candidate rank 0", "candidate rank 1"]
    assert len({e["pid"] for e in events}) == 4

    begins = {names(events)[e["pid"]]: e["ts"] for e in events if e["name"] == "step #0"}

    assert list(begins.values()) == [0.0, 5.0, 0.0, 5.0]

    ids = [e["id"] for e in written(*two_sides()) if e["ph"] in "sf"]

    assert len(ids) == 8
    assert all(ids.count(number) == 2 for number in ids)


def test_of_each_rank_there_can_be_a_file_in_the_form_that_hta_reads() -> None:
    """HTA 0.5.0 searches the text for the rank, and takes the iterations of torch's own schedule alone."""
    loops = [
        loop_trace(event("f", at + 1, at + 2), rank=rank, loop=loop, steps=[(at, at + 3), (at + 5, at + 8)])
        for rank in (0, 1)
        for loop, at in (("step", 1e12), ("other", 1e12 + 20))
    ]
    texts = {rank: gzip.decompress(text).decode() for rank, text in write_ranks(loops, "gloo").items()}
    found = {int(re.search(r'"rank":\s+(\d+)', text)[1]): json.loads(text) for text in texts.values()}

    assert found.keys() == texts.keys() == {0, 1}
    for rank, document in found.items():
        events = document["traceEvents"]
        steps = {e["name"]: e["ts"] for e in events if e["name"].startswith("ProfilerStep")}
        assert document["distributedInfo"] == {"rank": rank, "world_size": 2, "backend": "gloo"}
        assert steps == {"ProfilerStep#0": 0, "ProfilerStep#1": 5, "ProfilerStep#2": 20, "ProfilerStep#3": 25}
        assert names(events) == {1: f"rank {rank}"}


def test_what_comes_before_the_first_iteration_does_not_shift_a_side() -> None:
    early = ("base", "", [loop_trace(event("load", 400, 410), steps=[(1000, 1100)])])
    events = written(early, ("candidate", "", [loop_trace(steps=[(5000, 5100)])]))
    found = [e["ts"] for e in events if e["name"] in ("load", "step #0")]

    assert sorted(found) == [0.0, 600.0, 600.0]


def test_loops_of_a_rank_are_one_process_whose_arrows_are_told_apart() -> None:
    loops = [loop_trace(*arrow(1, at, at + 1), loop=f"loop{at}", steps=[(at, at + 9)]) for at in (10, 30)]
    events = written(("candidate", "", loops))

    assert names(events) == {1: "candidate rank 0"}
    assert len({e["id"] for e in events if "id" in e}) == 2


def test_a_gpu_is_a_process_of_its_own_and_one_that_did_nothing_is_none() -> None:
    gpu = [described("process_labels", pid=pid, labels=f"GPU {pid}") for pid in (0, 1)]
    kernel = event("gemm", 10, 20, cat="kernel", pid=0)
    events = written(("candidate", "", [loop_trace(*gpu, kernel, steps=[(0, 50)])]))

    assert sorted(names(events).values()) == ["candidate rank 0", "candidate rank 0 GPU 0"]


def test_without_iterations_a_side_begins_with_its_first_event() -> None:
    traces = [loop_trace(event("all", 700, 800), loop="", steps=[])]

    assert origin(traces) == 700
    assert origin([]) == 0


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
def test_an_incomplete_trace_is_an_error_that_names_the_rank(tmp_path: Path, text: str) -> None:
    leave(tmp_path, rank=0, text='{"traceEvents": []}')
    leave(tmp_path, rank=1, text=text)

    with pytest.raises(ReadingError, match="the profiler's trace of rank 1 is incomplete: "):
        read_traces(make_plan(tmp_path))


def test_a_rank_without_a_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match=r"rank 0 is incomplete: .*loops0.json"):
        read_traces(make_plan(tmp_path))
