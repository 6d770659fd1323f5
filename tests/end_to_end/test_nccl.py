"""What NCCL and CUDA do to ranks, acted out on a CPU: whole launches of which nothing but the device is made up."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.launching import Launch
from support.nccl_texts import LATE, TEXTS

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import Launcher

pytestmark = pytest.mark.spawn


BODIES = Path(__file__).parent.parent / "support" / "nccl_bodies.py"
"""Module of bodies. It is never imported here: the simulated CUDA would stay in this process."""


@pytest.fixture
def launch(cuda_launcher: Launcher, tmp_path: Path) -> Launch:
    return Launch(cuda_launcher, tmp_path, BODIES, device="cuda")


@pytest.mark.parametrize("code", [3, -signal.SIGKILL, -signal.SIGABRT])
def test_a_rank_whose_driver_takes_seconds_to_end_is_reported_by_its_own_end(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The kernel has closed its connections, and is not done: what it says of such a process is made up."""
    at = tmp_path / "pid"
    is_ending = processes.is_ending
    monkeypatch.setattr(
        processes, "is_ending", lambda pid: (at.exists() and at.read_text() == str(pid)) or is_ending(pid)
    )
    record = launch("ends_slowly", params={"at": str(at), "code": code})

    assert record.reason == f"rank 1 {'exit code 3' if code == 3 else 'killed by ' + signal.Signals(-code).name}"
    assert record.fates[0].rank == 1
    assert record.fates[1].how == "was waiting"


def test_a_hang_under_nccl_names_the_rank_that_is_missing(on_cuda_apart: Launch) -> None:
    """gloo's recorder is off: what is known of the collectives stands in NCCL's own."""
    on_cuda_apart.file = BODIES
    record = on_cuda_apart("hangs", timeout_s=5.0, variables={"TORCH_FR_BUFFER_SIZE": "0"})

    assert record.timed_out
    assert record.fates[0].rank == 1
    assert record.reason.startswith("hung in body, ended after 5.")
    assert record.reason.endswith("rank 0 waits in all_reduce of float32[8], number 2")
    assert ": rank 1 at nccl_bodies.py:" in record.reason


@pytest.mark.parametrize("frames", [0, 200])
def test_when_the_watchdog_ends_the_rank_that_waited_the_missing_one_is_named(launch: Launch, frames: int) -> None:
    record = launch("is_ended_by_the_watchdog", params={"why": LATE, "frames": frames})

    assert record.timed_out
    assert [f.rank for f in record.fates] == [1, 0]
    assert record.reason.startswith("hung in body, ended after ")
    assert ": rank 1 at nccl_bodies.py:" in record.reason
    assert record.reason.endswith("; rank 0 waits in all_reduce, number 7")
    assert record.fates[1].is_victim


def test_when_it_ends_a_rank_for_an_error_that_is_the_cause(launch: Launch) -> None:
    record = launch("is_ended_by_the_watchdog", params={"why": "CUDA error: uncorrectable ECC error encountered"})

    assert record.reason.splitlines()[0] == (
        "rank 0 killed by SIGABRT: the GPU's memory is damaged: CUDA error: uncorrectable ECC error encountered"
    )
    assert record.reason.splitlines()[1].startswith("next: sudo dmesg | grep -i xid")
    assert record.fates[1].how == "was waiting"


@pytest.mark.parametrize("name", ["out of memory", "full shared memory", "ncclSystemError"])
def test_a_real_error_of_nccl_is_the_cause_although_the_other_rank_was_done(launch: Launch, name: str) -> None:
    text, _, meaning = TEXTS[name]
    record = launch("meets_an_error", params={"text": text.removeprefix("DistBackendError: ")})

    assert record.reason.startswith(f"rank 1 raised DistBackendError: {meaning}: ")
    assert [f.how for f in record.fates] == ["raised DistBackendError", "passed"]


def test_a_rank_that_waits_in_a_line_of_its_own_is_not_blamed(launch: Launch) -> None:
    """Neither recorder says anything: ``loss.item()`` of rank 0 and rank 1's own loop look the same."""
    record = launch("hangs_unrecorded", timeout_s=5.0)

    assert "rank 0 at nccl_bodies.py" in record.reason
    assert "rank 1 at nccl_bodies.py" in record.reason
    assert "waits" not in record.reason
