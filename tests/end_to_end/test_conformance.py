"""Whatever happens in a rank, the launch ends, says what it was and leaves nothing: a fault a test, each launcher."""

from __future__ import annotations

import os
import re
from pathlib import Path

import faults
import pytest
from support.launching import Launch

from pytest_distbench.launch.starters import LAUNCHERS, Launcher
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.plan import BodyReference

pytestmark = pytest.mark.spawn

HANG_S = 2.0
"""The time-out of launches that are to reach it; it begins when all ranks are up."""
EARLY_HANG_S = 12.0
"""The same before any body runs: on a busy machine the other ranks, too, take seconds to get to where they wait."""
SHORT_S = 9.0
"""The time-out of launches whose ranks pass and then take 10 s to leave, which is no part of it."""

LAUNCHERS_UNDER_TEST = os.environ.get("DISTBENCH_TEST_LAUNCHERS", "warm torchrun cmd").split()
"""Others where pytest itself has to run elsewhere: ``test_slurm.py``."""

CASES = [
    pytest.param(
        name,
        fault,
        id=f"{name}-{fault.name}",
        marks=() if name == "warm" else pytest.mark.nightly if fault.is_any_launchers else pytest.mark.thorough,
    )
    for name in LAUNCHERS_UNDER_TEST
    for fault in faults.FAULTS
]
"""Once under the launcher that forks; the others import torch in every rank, for seconds."""


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    return Launch(launcher, tmp_path, Path(faults.__file__))


@pytest.mark.parametrize(("launcher", "fault"), CASES, indirect=["launcher"], scope="module")  # else one for each case
def test_a_fault_is_detected_and_attributed_and_the_next_launch_is_well(launch: Launch, fault: faults.Fault) -> None:
    variables = {faults.PHASE_VARIABLE: fault.phase} if fault.phase else {}
    timeout_s = 90.0
    if fault.is_hang or fault.waits:
        timeout_s = EARLY_HANG_S if fault.phase else HANG_S
    elif fault.remark:
        timeout_s = SHORT_S
    record = launch(fault.body.__name__, timeout_s=timeout_s, variables=variables)

    if fault.body is faults.stops_who_waits_for_it and LAUNCHERS[launch.launcher.name].hosts == "many":
        assert "its relay has been silent for" in record.reason  # what its ranks have measured is with it
        return
    assert record.outcome == ("failed" if fault.reason else "passed"), record.reason
    assert re.match(fault.reason, record.reason)
    if fault.reason and fault.root_cause is not None:
        assert record.fates[0].rank == fault.root_cause
    assert record.timed_out == fault.is_hang
    assert len(record.remarks) == bool(fault.remark)
    assert re.match(fault.remark, "".join(record.remarks))


@pytest.mark.parametrize(
    ("launcher", "world_size"),
    [
        ("warm", 1),
        ("warm", 3),
        ("warm", 16),
        pytest.param("torchrun", 1, marks=pytest.mark.nightly),
        pytest.param("torchrun", 3, marks=pytest.mark.thorough),
        pytest.param("torchrun", 5, marks=pytest.mark.nightly),
        pytest.param("cmd", 3, marks=pytest.mark.thorough),
    ],
    indirect=["launcher"],
    scope="module",
)
def test_a_group_of_any_size_passes(launch: Launch, world_size: int) -> None:
    """Alone, an odd number, and many more than there are cores; every other test has two."""
    record = launch("healthy", world_size=world_size, timeout_s=180)

    assert (record.outcome, record.reason) == ("passed", "")
    assert [(m.value, m.ranks) for m in record.measurements if m.name != PEAK_MEMORY] == [(42.0, world_size)]


@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_a_body_or_script_that_destroys_its_group_does_not_hang_at_its_exit(launch: Launch) -> None:
    """Before, one launch in three did, of a rank that was forked."""
    script = BodyReference(file=str(Path(faults.__file__).with_name("scripts") / "ddp_script.py"), function="")
    for _ in range(6):
        assert launch("destroys_its_group", timeout_s=90.0).outcome == "passed"
        assert launch("", body=script, timeout_s=90.0).outcome == "passed"


@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_a_rank_that_cannot_even_start_says_why_and_leaves_no_file(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch writes what ended a forked rank to a file below TMPDIR, and forgets that."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    record = launch("healthy", working_dir=tmp_path / "gone")

    assert record.outcome == "failed"
    assert "FileNotFoundError" in record.fates[0].log_tail
    assert list(temporary.glob("pytorch-errorfile*")) == []
