"""The calls of a sweep: supported, checked element by element, and prepared before anything is timed."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads import calls as steady
from pytest_distbench.workloads.calls import Call, Calls, expect_sums, is_steady, refusal, warm_up
from pytest_distbench.workloads.collectives import OPERATIONS, Buffers, Form, Operation
from pytest_distbench.workloads.gradients import bucket_sweep, overlap

FORM = Form(ranks=(0,), rank=0)
BUFFERS = Buffers(torch.zeros(1), torch.zeros(1))


def takes() -> Call:
    return Call((BUFFERS,), FORM, lambda: None)


def refuses(reason: str) -> Call:
    def run() -> None:
        raise RuntimeError(reason)

    return Call((BUFFERS,), FORM, run)


def test_a_pair_is_refused_where_the_usual_one_is_taken() -> None:
    assert refusal(make_rank(), takes, lambda: None) == ""

    assert refusal(make_rank(), lambda: refuses("Invalid scalar type\nmore"), takes) == "Invalid scalar type"

    assert refusal(make_rank(), lambda: refuses("no \x02 here"), takes) == "no ? here"

    with pytest.raises(RuntimeError, match="shape"):
        refusal(make_rank(), lambda: refuses("shape"), lambda: refuses("shape"))
    with pytest.raises(RuntimeError, match="shape"):
        refusal(make_rank(), lambda: refuses("shape"), lambda: None)

    reason = "Backend gloo does not support alltoall"
    assert refusal(make_rank(), lambda: refuses(reason), lambda: refuses(reason)) == reason


def take_only_float32(message: torch.Tensor, **_: object) -> None:
    """An all_reduce as a backend's that has one type."""
    if message.dtype != torch.float32:
        raise RuntimeError("Invalid scalar type")


@pytest.mark.parametrize("body", [bucket_sweep, overlap])
def test_a_body_whose_element_type_the_backend_does_not_sum_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[RankContext], None]
) -> None:
    monkeypatch.setattr(dist, "all_reduce", take_only_float32)
    rank = make_rank()
    rank.params = {"dtype": "int16", "message_bytes": 64, "matrix": 4}

    with pytest.raises(unittest.SkipTest, match="fake does not reduce int16 here: Invalid scalar type"):
        body(rank)
    expect_sums(rank, "float32")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], False),
        ([1.0, 1.0], False),
        ([1.0, 1.0, 1.0], True),
        ([2.0, 1.5, 1.005, 1.0, 0.995], True),
        ([2.0, 1.5, 1.2, 1.1, 1.0], False),
        ([1.0, 1.0, 1.05], False),
    ],
)
def test_the_last_times_have_to_agree(times: list[float], *, expected: bool) -> None:
    assert is_steady(times) is expected


def test_a_device_that_speeds_up_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(HostClock, "perf_counter", lambda: clock[0])
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock[0] += 1e-3 * (2.0 if calls[0] < 120 else 1.0)

    assert warm_up(make_rank(), call) == 6  # two slow ones, one of both, and three that agree


CALLS_FORM = Form(ranks=(4, 5, 6), rank=1)


class Work:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait(self) -> None:
        self._log.append("wait")


def operation(log: list[Any]) -> Operation:
    def call(buffers: Buffers, form: Form) -> object:
        log.append((buffers.sent.storage_offset() // 16, form.root))
        return [Work(log)] if form.is_async else None

    return Operation(name="noted", busbw_factor=lambda n: 1.0, source="", call=call, expected=None)


def calls(log: list[Any], form: Form | None = CALLS_FORM, **options: Any) -> Calls:
    memory = {"device": torch.device("cpu"), "dtype": torch.float32, "largest": 1, "least_bytes": 4096}
    return Calls(operation(log), form, size=3, in_place=True, **memory, **options)


def test_roots_shift_and_buffers_are_each_calls_own() -> None:
    log: list[Any] = []
    made = calls(log)
    for call in (made.make(1, 3), made.make(1, 3, at=0)):
        call.run()

    assert log == [(3, 0), (0, 0)]

    log: list[Any] = []
    made = calls(log, shifts_root=True)
    for k in range(4):
        made.make(1, k).run()

    assert made.period == 3
    assert [root for _, root in log] == [0, 1, 2, 0]

    call = calls([], None, shifts_root=True).make(1, 2)
    assert (call.buffers, call.form, call.run()) == ((), None, None)

    assert Form(ranks=(4, 5, 6), rank=1, root=2).global_root == 6
    assert CALLS_FORM.size == 3


@pytest.mark.parametrize(
    ("together", "log"), [("turns", [(2, 0), (3, 0)]), ("async", [(2, 0), (3, 0), "wait", "wait"])]
)
def test_the_parts_of_a_message_are_sent_one_by_one_or_at_once(together: Any, log: list[Any]) -> None:
    found: list[Any] = []
    calls(found, parts=2, together=together).make(1, 1).run()

    assert found == log


def test_a_rank_that_looks_on_goes_by_what_the_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    sums = iter([1.0, 1.0, 7.0, 0.0])  # one refused, one calls, its reason, nobody's call is wrong
    monkeypatch.setattr(rank, "sum_over_ranks", lambda value: next(sums))
    monkeypatch.setattr(rank, "agree", lambda value: 7.0)

    assert refusal(rank, lambda: Call((), None, lambda: None), lambda: None) == "refused in the ranks that call"


def test_a_warm_up_that_never_becomes_steady_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, step = [0.0], [1e-3]
    monkeypatch.setattr(HostClock, "perf_counter", lambda: clock[0])

    def call() -> None:
        step[0] *= 1.01
        clock[0] += step[0]

    warm_up(make_rank(), call)
    assert steady.MOST_S < clock[0] < steady.MOST_S + 60 * steady.WINDOW_S


ALL_REDUCE = OPERATIONS["all_reduce"]


def pool(measured: Operation, *, rank: int = 0, world_size: int = 1, **options: Any) -> Calls:
    form = Form(ranks=tuple(range(world_size)), rank=rank)
    usual = {"device": torch.device("cpu"), "dtype": torch.float32, "in_place": True, **options}
    return Calls(measured, form, size=world_size, **usual)


def test_a_device_without_registered_memory_skips_with_torchs_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An A100, say: torch 2.7 and later refuse NCCL's allocator where the device has no multicast."""

    class Backend:
        def register_mem_pool(self, pool: object) -> None:
            """It is never come to."""

        @property
        def mem_allocator(self) -> object:
            raise RuntimeError("NCCL mem allocator is not supported in this NCCL version\nException raised from ...")

    group = SimpleNamespace(_get_backend=lambda device: Backend())
    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD=group))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")

    with pytest.raises(
        unittest.SkipTest, match=r"multicast .*NVIDIA A100-SXM4-80GB: NCCL mem allocator is not .* NCCL version$"
    ):
        pool(ALL_REDUCE, largest=4, is_registered=True)


def test_registered_memory_is_refused_without_nccl() -> None:
    with pytest.raises(RecordingError, match=r"buffers='registered' needs NCCL on a GPU, .* no process group on cpu"):
        pool(ALL_REDUCE, largest=4, is_registered=True)


def test_buffers_in_place_are_parts_and_out_of_place_apart() -> None:
    gathered = pool(OPERATIONS["all_gather"], largest=40, rank=1, world_size=4).make(40, 0).buffers[0]
    scattered = pool(OPERATIONS["reduce_scatter"], largest=40, rank=1, world_size=4).make(40, 0).buffers[0]
    assert gathered.received.numel() == 40
    assert gathered.sent.data_ptr() == gathered.received[10:20].data_ptr()
    assert (scattered.sent.numel(), scattered.received.storage_offset()) == (40, 10)

    buffers = pool(OPERATIONS["gather"], largest=40, world_size=4, in_place=False).make(40, 0).buffers[0]
    assert (buffers.sent.numel(), buffers.received.numel()) == (10, 40)
    assert [part.storage_offset() for part in buffers.parts or ()] == [0, 10, 20, 30]

    parts = pool(ALL_REDUCE, largest=4, parts=3).make(4, 0).buffers
    assert len({one.sent.data_ptr() for one in parts}) == 3

    made = pool(ALL_REDUCE, largest=40, least_bytes=400)
    starts = [made.make(20, k).buffers[0].sent.storage_offset() for k in range(7)]
    assert starts == [0, 20, 40, 60, 80, 0, 20]
    both = made.make(20, 3).buffers[0]
    assert both.sent is both.received  # in place
    assert all(made.make(20, k).buffers[0].sent.numel() == 20 for k in range(7))


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_of_one_rank_there_is_a_list_of_one_part(name: str) -> None:
    buffers = pool(OPERATIONS[name], largest=40, in_place=False).make(40, 0).buffers[0]

    assert [part.numel() for part in buffers.parts or ()] == [40]
