"""The conformance lines on a GPU: NCCL with one rank, and with two ranks that share a device. Skipped without a GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

import faults
import pytest
from support.launching import Launch
from support.processes import wait_for

from pytest_distbench.launch.contract import Launcher
from pytest_distbench.machine.gpus import read_gpus

pytestmark = [
    pytest.mark.spawn,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not read_gpus(os.environ).visible, reason="needs an NVIDIA GPU and its driver"),
]

HANG_S = 40.0
"""NCCL's first collective on a cold device takes seconds."""
BODIES = (faults.raises, faults.exits, faults.is_killed, faults.hangs)
ON_GPU = [fault for fault in faults.FAULTS if fault.body in BODIES]
SLACK_BYTES = 64 * 2**20


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    return Launch(launcher, tmp_path, Path(faults.__file__))


@pytest.fixture(autouse=True)
def memory_is_given_back() -> object:
    before = used_bytes()
    yield
    wait_for(lambda: used_bytes() <= before + SLACK_BYTES, limit_s=20)


def used_bytes() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        uuid = read_gpus(os.environ).visible[0].uuid
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)
    finally:
        pynvml.nvmlShutdown()


def test_one_rank_with_nccl(launch: Launch) -> None:
    record = launch("healthy", world_size=1, backend="nccl", device="cuda", devices=[0])

    assert (record.outcome, record.reason) == ("passed", "")
    assert record.software["nccl"]


def test_two_ranks_on_one_gpu(launch: Launch) -> None:
    record = launch("raises_after_a_collective", backend="nccl", device="cuda", devices=[0, 0], shares_gpu=True)

    assert record.reason == "rank 1 raised KeyError: 'gradient'"


@pytest.mark.parametrize("fault", ON_GPU, ids=lambda fault: fault.name)
def test_a_fault_with_nccl_is_detected_and_attributed(launch: Launch, fault: faults.Fault) -> None:
    record = launch(
        fault.body.__name__,
        backend="nccl",
        device="cuda",
        devices=[0, 0],
        shares_gpu=True,
        timeout_s=HANG_S if fault.is_hang or fault.waits else 120.0,
    )

    assert re.match(fault.reason, record.reason)
    assert record.fates[0].rank == fault.root_cause
