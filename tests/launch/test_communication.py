"""Busy communication, of events as torch's profiler writes them."""

from __future__ import annotations

import pytest
from support.traces import event, loop_trace

from pytest_distbench.launch.communication import busy_communication, union


def test_what_overlaps_is_counted_once() -> None:
    assert union(iter([(5.0, 9.0), (0.0, 4.0), (2.0, 3.0), (3.0, 6.0), (20.0, 21.0)])) == 10.0
    assert union(iter([])) == 0.0


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


def test_of_loops_without_communication_and_of_what_is_no_loop_nothing_is_told() -> None:
    whole = loop_trace(event("gloo:all_reduce", 0, 9), loop="", steps=[])

    assert busy_communication([loop_trace(steps=[(0, 1)]), whole]) == {}
