"""Launches on the simulated CUDA: what becomes of queued work, of errors around it, and of the environment.

The functions without ``test_`` run in ranks. They import what they use of the simulation: an import here would make
this process believe that it has CUDA.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.launching import Launch

from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.sweep import sweep

pytestmark = pytest.mark.spawn

ROOT = Path(__file__).parents[2]
FOR_EVER_S = 1000.0
LIMIT_S = 20.0
FORWARD_S, LATE_S = 0.003, 0.002


def leaves_work_that_fails(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    if rank.rank == 1:
        cuda.launch(0.01, failure=RuntimeError("CUDA error: device-side assert triggered"))


def leaves_work_that_never_ends(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    dist.all_reduce(torch.ones(8, device=rank.device))
    cuda.launch(FOR_EVER_S)


def raises_during_a_collective_that_the_others_do_not_join(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    dist.all_reduce(torch.ones(8, device=rank.device))
    with rank.phase("step"):
        cuda.launch(FOR_EVER_S)
        if rank.rank == 1:
            raise ValueError("the cause")
    rank.barrier()


def trains(rank: RankContext) -> None:
    """The host prepares a step for 4 ms, the device computes for 8."""
    from support import stand_in_cuda as cuda

    goal = rank.goal("accuracy", target=0.5, every=60, max_steps=60, min_steps=60)
    for _ in goal.steps(samples_per_step=8):
        time.sleep(0.004)
        cuda.launch(0.008)
        if rank.params["reads_loss"]:
            torch.ones(1, device=rank.device).item()
        goal.check(lambda: 1.0, loss=1.0)


def steps_in_phases(rank: RankContext) -> None:
    """Rank 1 comes late to the all_reduce by two milliseconds of its device."""
    from support import stand_in_cuda as cuda
    from support import streams

    waits = []
    wait_until = streams.wait_until
    streams.wait_until = lambda moment: waits.append(moment) or wait_until(moment)  # type: ignore[func-returns-value]
    gradient = torch.ones(8, device=rank.device)
    inside = 0
    for _ in rank.timed("step", warmup=3, iterations=20):
        before = len(waits)
        with rank.phase("forward"):
            cuda.launch(FORWARD_S)
        with rank.phase("backward"):
            cuda.launch(FORWARD_S + LATE_S * (rank.rank == 1))
        with rank.phase("communication"):
            dist.all_reduce(gradient)
            cuda.launch(FORWARD_S)
        inside += len(waits) - before
    rank.record("waits", inside, better="exact")


def waits_for_the_others(rank: RankContext) -> None:
    made = []
    new_group = dist.new_group
    dist.new_group = lambda **options: made.append(options) or new_group(**options)  # type: ignore[func-returns-value]
    dist.barrier = lambda *_, **__: pytest.fail("torch's barrier takes memory of the device")
    rank.barrier()
    rank.agree(1.0)
    rank.barrier()

    assert [options["timeout"].total_seconds() for options in made] == [48.0]  # of 60


def sweeps_every_operation(rank: RankContext) -> None:
    for row in OPERATIONS.values():
        if row.min_ranks <= rank.world_size:
            with rank.point(operation=row.name):
                sweep(rank, row)


def test_its_error_is_the_bodys(on_cuda: Launch) -> None:
    record = on_cuda("leaves_work_that_fails")

    assert record.reason == "rank 1 raised RuntimeError: CUDA error: device-side assert triggered"
    assert record.fates[0].phase == "body"
    assert record.fates[0].error is not None
    assert "work that was still on the device's queue when the body had returned" in record.fates[0].error.traceback


def test_work_that_never_ends_is_a_hang_in_the_body(on_cuda: Launch) -> None:
    record = on_cuda("leaves_work_that_never_ends", timeout_s=4.0)

    assert record.reason.startswith("hung in body")


def test_an_error_in_a_phase_is_reported_though_the_device_would_wait_for_ever(on_cuda: Launch) -> None:
    record = on_cuda("raises_during_a_collective_that_the_others_do_not_join", timeout_s=LIMIT_S)

    assert record.reason == "rank 1 raised ValueError: the cause"


def test_a_loss_that_is_read_at_each_step_is_a_regression_of_the_step(on_cuda: Launch) -> None:
    quickest = []
    for reads_loss in (False, True):
        record = on_cuda("trains", params={"reads_loss": reads_loss})
        [step] = [m.spread for m in record.measurements if m.name == "step_time"]
        assert step is not None
        quickest.append(step.minimum)

    assert quickest[1] / quickest[0] > 1.3


def test_phases_have_the_devices_time_and_show_which_rank_is_late(on_cuda: Launch) -> None:
    record = on_cuda("steps_in_phases")
    step = record.breakdowns["step"]
    parts = {"/".join(part.path): part for part in step.parts}

    assert record.reason == ""
    assert [m.value for m in record.measurements if m.name == "waits"] == [0]
    for rank, of_backward_s in enumerate((FORWARD_S, FORWARD_S + LATE_S)):
        assert 0.999 * FORWARD_S <= parts["forward"].times_s[rank] < 2 * FORWARD_S
        assert 0.999 * of_backward_s <= parts["backward"].times_s[rank] < 2 * of_backward_s
        assert parts["backward"].hosts_s[rank] < of_backward_s
        assert -1e-6 < step.unaccounted_s[rank] < FORWARD_S
    communication = parts["communication"]
    assert communication.late_s[1] > communication.late_s[0]
    assert communication.waits_s[0] > communication.waits_s[1]


@pytest.mark.parametrize(
    "world_size", [1, 3, *(pytest.param(count, marks=pytest.mark.nightly) for count in (2, 4, 5, 6, 7))]
)
def test_a_sweep_beyond_1_mib_warms_the_device_up_with_a_message_that_the_operation_can_send(
    on_cuda: Launch, world_size: int
) -> None:
    """Whole shares for every rank: a message of 1 MiB is none of all_to_all_v, nor on 3 ranks one of all_gather."""
    params = {"dtype": "float32", "sizes": [1024, 2**21], "iterations": 2, "warmup": 1, "cache": "hot"}
    record = on_cuda("sweeps_every_operation", world_size=world_size, params=params)

    assert record.reason == ""
    wrong = {m.at["operation"]: m.value for m in record.measurements if m.name == "wrong_elements"}
    assert wrong == dict.fromkeys(OPERATIONS.keys() - {"barrier", *(["send_recv"] if world_size == 1 else [])}, 0)


@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.nightly)])
def test_the_shipped_transformer_records_tokens_per_second_and_memory(on_cuda: Launch, way: str) -> None:
    on_cuda.file = ROOT / "suites/training/throughput.py"
    record = on_cuda("train", params={"way": way}, backend="nccl", timeout_s=300.0)

    assert record.reason == ""
    found = {m.key: m.value for m in record.measurements}
    assert found["parameters"] == 807_488
    assert (found["tokens_per_second"] or 0) > 0
    assert {f"memory[of={of}]" for of in ("allocated", "reserved", "device")} <= found.keys()
    assert record.software["autocast"] == ("bfloat16" if way == "ddp" else "off")


@pytest.mark.parametrize("world_size", [2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 4))])
def test_the_shipped_scaling_suite_records_the_parts_of_a_step(on_cuda: Launch, world_size: int) -> None:
    """The parts of a step add up, as the simulated events time what the host computes."""
    on_cuda.file = ROOT / "suites/scaling/convolutional.py"
    params = {"model": "mobilenet_v2", "batch": 4, "communication": "on"}
    record = on_cuda("train", params=params, backend="nccl", world_size=world_size, timeout_s=300.0)

    assert record.reason == ""
    step = record.breakdowns["step"]
    assert [part.path for part in step.parts] == [["copy"], ["forward"], ["loss"], ["backward"], ["optimizer"]]
    assert all(abs(rest) <= 0.03 * whole for rest, whole in zip(step.unaccounted_s, step.times_s, strict=True))
    assert {m.name for m in record.measurements} >= {"samples_per_second", "parameters", "tensors"}


@pytest.mark.parametrize("kind", ["synthetic", "generated"])
def test_the_shipped_training_on_images_records_its_rate_and_its_wait_for_data(on_cuda: Launch, kind: str) -> None:
    on_cuda.file = ROOT / "suites/scaling/reading.py"
    record = on_cuda("train", params={"kind": kind, "batch": 8, "steps": 2}, backend="nccl", timeout_s=300.0)

    assert record.reason == ""
    found = {m.key: m for m in record.measurements}
    assert (found["samples_per_second"].value or 0) > 0
    assert found["step"].identity["data"] == kind
    assert {"load_share", "phase/step/load", "phase/step/copy"} <= found.keys()


def test_ranks_wait_for_one_another_in_time_and_without_the_device(on_cuda: Launch) -> None:
    record = on_cuda("waits_for_the_others", backend="nccl", timeout_s=60.0)

    assert record.reason == ""
