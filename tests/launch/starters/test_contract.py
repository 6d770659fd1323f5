"""One conformance suite for both launchers: what a process group is given, what it returns, how it ends."""

from __future__ import annotations

import multiprocessing
import re
import textwrap
from pathlib import Path

import pytest
from support.launching import Launch

from pytest_distbench.errors import BackendUnavailable
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.launch import LaunchRecord

pytestmark = pytest.mark.spawn

BODIES = """
import gc, json, multiprocessing, os, signal, sys, threading, time

def nothing(rank):
    pass

def environment(rank):
    import torch
    names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
             "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
             "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
             "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    found = {name: os.environ.get(name) for name in names}
    found |= {"threads": torch.get_num_threads(), "mine": os.environ.get("MINE"),
              "omp": os.environ.get("OMP_NUM_THREADS"), "start": multiprocessing.get_start_method(),
              "bytes": os.environ.get("BYTES"), "collects": gc.isenabled(), "frozen": gc.get_freeze_count(),
              "cwd": os.getcwd(), "params": rank.params, "outer": os.environ.get("PET_NNODES")}
    (rank.data_dir / f"environment{rank.rank}.json").write_text(json.dumps(found))

def measures(rank):
    import torch
    import torch.distributed as dist
    x = torch.ones(256)
    for _ in rank.timed("latency", warmup=1, iterations=5, at={"message_bytes": 1024}):
        with rank.phase("fill"):
            x.fill_(1.0)
        dist.all_reduce(x)
    rank.record("sum", float(x.sum()), better="exact")
    with rank.phase("outer"), rank.phase("inner"):
        rank.barrier()

def hangs(rank):
    rank.barrier()
    if rank.rank == 1:
        time.sleep(100)  # the culprit's line
    rank.barrier()

def waits_for_a_build(rank):
    from torch.utils.file_baton import FileBaton
    rank.barrier()
    FileBaton(str(rank.data_dir / "lock")).wait()

def one_skips(rank):
    import pytest
    if rank.rank == 1:
        pytest.skip("not today")
    rank.barrier()

def all_skip(rank):
    import pytest
    pytest.skip("not today")

def prints(rank):
    print("python says", rank.rank)
    os.write(2, b"the system says it\\n")
    if rank.rank == 0:
        raise RuntimeError("look at the log")

def disagrees(rank):
    rank.record("count", rank.rank, better="exact")

def breaks_off(rank):
    for i in rank.timed("latency", warmup=0, iterations=5):
        if i == 2:
            break
"""


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    (tmp_path / "bodies.py").write_text(textwrap.dedent(BODIES))
    return Launch(launcher, tmp_path, tmp_path / "bodies.py")


def test_ranks_get_torchruns_environment_and_ours(launch: Launch, tmp_path: Path) -> None:
    import json

    outer = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_PORT": "1", "MINE": "yes", "BYTES": "a\udcff"}
    assert launch("environment", variables=outer).outcome == "passed"
    first, second = (json.loads((tmp_path / f"environment{rank}.json").read_text()) for rank in (0, 1))

    assert all(value is not None for name, value in second.items() if name.isupper())
    assert (second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"], second["LOCAL_WORLD_SIZE"]) == (
        "1",
        "1",
        "2",
        "2",
    )
    assert (second["GROUP_RANK"], second["TORCHELASTIC_USE_AGENT_STORE"]) == ("0", "True")
    assert (second["mine"], second["omp"], second["threads"]) == ("yes", "1", 1)
    assert second["params"] == {"a": [1, 2.5, "x"]}
    assert (second["start"], second["bytes"]) == (multiprocessing.get_start_method(), "a\udcff")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "1"
    assert second["collects"]
    assert second["frozen"] > 100_000  # what torch made: no collection in a body goes through it


def test_measurements_come_back_reduced(launch: Launch) -> None:
    record = launch("measures")
    found = {m.key: m for m in record.measurements}

    phases = {"phase/outer", "phase/outer/inner", "phase/latency/fill[message_bytes=1024]"}
    assert set(found) == {"latency[message_bytes=1024]", "sum", "peak_memory", *phases}
    assert len(found["phase/latency/fill[message_bytes=1024]"].values) == 5
    assert found["sum"].value == 512.0
    assert found["latency[message_bytes=1024]"].spread is not None
    assert found["latency[message_bytes=1024]"].spread.n == 5
    assert record.software["torch"]


def _line_of(record: LaunchRecord, *, rank: int) -> int:
    """The line of the bodies' file that a hung rank's stacks name."""
    stacks = next(f.stacks for f in record.fates if f.rank == rank)
    return int(re.search(r'bodies\.py", line (\d+) in hangs', stacks).group(1))  # type: ignore[union-attr]


def test_a_hang_ends_at_the_time_out_and_shows_the_line_each_rank_is_at(
    launcher: Launcher, launch: Launch, tmp_path: Path
) -> None:
    record = launch("hangs", timeout_s=4.0)

    assert (record.outcome, record.timed_out) == ("failed", True)
    assert "time.sleep(100)" in (tmp_path / "bodies.py").read_text().splitlines()[_line_of(record, rank=1) - 1]


def test_a_lock_that_a_killed_build_has_left_is_named(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    record = launch("waits_for_a_build", timeout_s=4.0)

    assert f"all ranks wait outside of any collective, for the end of the file {tmp_path / 'lock'}\n" in record.reason


def test_all_skip_is_a_skip(launch: Launch) -> None:
    everyone = launch("all_skip")

    assert (everyone.outcome, everyone.reason) == ("skipped", "not today")


def test_output_of_python_and_of_the_system_is_in_the_ranks_log(launch: Launch) -> None:
    record = launch("prints")
    log = next(f for f in record.fates if f.rank == 0).log_tail

    assert "python says 0" in log
    assert "the system says it" in log


@pytest.mark.parametrize(
    ("body", "world_size", "text"),
    [
        ("one_skips", 2, "ranks disagree: rank 1 skipped, the others did not"),
        ("disagrees", 2, "ranks disagree on a value that must be equal (rank 0: 0, rank 1: 1)"),
        ("breaks_off", 1, "was left before its last iteration"),
        ("nowhere", 1, "has no 'nowhere'"),
    ],
)
def test_ranks_that_disagree_or_end_early_or_have_no_body_are_reported(
    launch: Launch, body: str, world_size: int, text: str
) -> None:
    assert text in launch(body, world_size=world_size).reason


def test_the_fake_backend_runs(launch: Launch) -> None:
    assert launch("nothing", backend="fake").outcome == "passed"


def test_a_backend_this_torch_lacks_is_an_error_with_the_reason(launcher: Launcher, launch: Launch) -> None:
    if launcher.name == "warm":
        with pytest.raises(BackendUnavailable, match=r"'mpi' is not available here: this build of torch has.*gloo"):
            launch("nothing", backend="mpi")
    else:
        assert "mpi" in launch("nothing", backend="mpi", world_size=1).reason.lower()
