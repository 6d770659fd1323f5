"""What NCCL's watchdog wrote into a log, wherever it lies in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nccl_texts import LATE, TEXTS, watchdog_log

from pytest_distbench.launch.diagnosis.watchdog import read_abort
from pytest_distbench.launch.logs import tail


def test_a_late_collective_is_found_above_the_frames_of_c(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("step 1\n" + watchdog_log(LATE))
    found = read_abort(log)

    assert "SeqNum" not in tail(log).partition("what()")[0]
    assert found is not None
    assert (found.kind, found.op, found.number) == ("wait", "all_reduce", 7)
    assert found.text == LATE.removeprefix("[Rank 0] ")


@pytest.mark.parametrize(
    ("op", "told"), [("_ALLGATHER_BASE", "all_gather_into_tensor"), ("BROADCAST", "broadcast"), ("NEW", "new")]
)
def test_a_collective_has_the_name_of_its_function(tmp_path: Path, op: str, told: str) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(watchdog_log(LATE.replace("ALLREDUCE", op)).replace("ALLREDUCE", op))
    found = read_abort(log)

    assert found is not None
    assert found.op == told


def test_an_error_is_told_with_what_torch_and_nccl_say_below_it(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    why = TEXTS["full shared memory"][0].removeprefix("DistBackendError: ")
    log.write_text(watchdog_log(why))
    found = read_abort(log)

    assert found is not None
    assert (found.kind, found.text) == ("cause", why)


def test_a_peer_that_is_gone_makes_a_victim(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(watchdog_log(TEXTS["a peer that is gone"][0].removeprefix("DistBackendError: ")))
    found = read_abort(log)

    assert found is not None
    assert found.kind == "victim"


@pytest.mark.parametrize("text", ["", "my watchdog barked\n", "\0\xff" * 1000])
def test_a_log_without_its_words_says_nothing(tmp_path: Path, text: str) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(text)

    assert read_abort(log) is None
    assert read_abort(tmp_path / "none.log") is None
