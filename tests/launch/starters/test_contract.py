"""What a launcher is: it opens the site of a launch, on hosts that are alike."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.launching import Launch

from pytest_distbench.errors import BackendUnavailable, ConfigurationError
from pytest_distbench.launch.site.contract import HostDescription
from pytest_distbench.launch.starters import calls
from pytest_distbench.launch.starters.calls import Callers
from pytest_distbench.launch.starters.contract import HostsFound, HostsWanted, Launcher, describe_hosts
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace

pytestmark = pytest.mark.spawn

SAY = """
import os, socket, sys
port, address, *_ = sys.argv[1:]
for said in os.environ["SAID"].splitlines():
    line = socket.create_connection((address, port))
    line.sendall(said.replace("SECRET", os.environ["DISTBENCH_RELAY_SECRET"]).encode() + b"\\n")
"""


def says(*platforms: str, torch: str = "2.13.0", sees: bool = True) -> str:
    """Each of two hosts says that it is of a class; the last one runs this torch, and sees the folder or not."""
    environment = hardware.describe(platform_name="x", gpus=Gpus(), software={"torch": "2.13.0"}, variables={})
    said = []
    for number, platform in enumerate(platforms, 1):
        software = {"torch": torch if number == len(platforms) else "2.13.0"}
        described = replace(environment, platform=platform, software=software)
        told = HostDescription(secret="SECRET", host=f"n{number}", environment=described, sees=sees or number == 1)
        said.append(msgspec.json.encode(told).decode())
    return f"SAID={shlex.quote(chr(10).join(reversed(said)))} {sys.executable} -c {shlex.quote(SAY)} $4 $5"


def described(does: str, *, gpu: bool = False, platform: str | None = None) -> HostsFound:
    def start(module: str, *words: str, log: Path, session: str) -> Callers:
        rest: dict[str, Any] = {"environment": os.environ, "count": 2, "log": log, "session": session, "advice": "Up?"}
        python = [sys.executable, "-m", module]
        return Callers(lambda where, _: ["sh", "-c", does, "sh", *python, *where, *words], **rest)

    return describe_hosts(
        "the hosts", start, HostsWanted(gpu=gpu, platform=platform, ranks=2), gpu_advice="take others"
    )


def test_the_hardware_is_that_of_the_hosts() -> None:
    assert described(says("cpu-a", "cpu-a")).environment.platform == "cpu-a"


def test_they_share_a_folder_that_all_of_them_see() -> None:
    assert described(says("cpu-a", "cpu-a")).share_temporary
    assert not described(says("cpu-a", "cpu-a", sees=False)).share_temporary


def test_hosts_of_several_classes_are_of_the_one_that_is_named() -> None:
    assert described(says("cpu-a", "cpu-b"), platform="mine").environment.platform == "mine"


@pytest.mark.parametrize(
    ("does", "gpu", "told"),
    [
        (says("cpu-a", "cpu-b"), False, r"several classes of hardware: .* n1: 'cpu-a'; n2: 'cpu-b'"),
        (says("cpu-a", "cpu-a", torch="2.12.0"), False, r"run other software: n1: .*2\.13.*; n2: .*2\.12"),
        (says("cpu-a", "cpu-a"), True, r"--gpu: no GPU is visible on n1: take others"),
        (says("cpu-a"), False, r"the hosts do not all say what they are: .*1 of 2 hosts have called \(n1\)"),
        ("echo No module named pytest_distbench >&2; exit 1", False, r"0 of 2 hosts .*No module named"),
    ],
    ids=["classes", "software", "no GPU", "one is silent", "not installed"],
)
def test_hosts_that_cannot_be_compared_are_refused(does: str, gpu: bool, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        described(does, gpu=gpu)


def test_hosts_that_do_not_answer_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_S", 0.5)

    with pytest.raises(ConfigurationError, match=r"0 of 2 hosts have called within 1 s: 'sh said nothing'. Up\?"):
        described("exec sleep 60")


told_by_ranks = pytest.mark.parametrize(
    "launcher", ["warm", pytest.param("torchrun", marks=pytest.mark.nightly)], indirect=True, scope="module"
)
"""What is tested is in the ranks' reports, the same under every launcher; torchrun takes seconds longer."""

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


@told_by_ranks
def test_measurements_come_back_reduced(launch: Launch) -> None:
    record = launch("measures")
    found = {m.key: m for m in record.measurements}

    phases = {"phase/outer", "phase/outer/inner", "phase/latency/fill[message_bytes=1024]"}
    assert set(found) == {"latency[message_bytes=1024]", "sum", "peak_memory", *phases}
    assert len(found["phase/latency/fill[message_bytes=1024]"].series) == 5
    assert found["sum"].value == 512.0
    assert found["latency[message_bytes=1024]"].summary is not None
    assert found["latency[message_bytes=1024]"].summary.n == 5
    assert record.software["torch"]


def _line_of(record: LaunchRecord, *, rank: int) -> int:
    """The line of the bodies' file that a hung rank's stacks name."""
    stacks = next(f.stacks for f in record.fates if f.rank == rank)
    return int(re.search(r'bodies\.py", line (\d+) in hangs', stacks).group(1))  # type: ignore[union-attr]


@told_by_ranks
def test_a_hang_ends_at_the_time_out_and_shows_the_line_each_rank_is_at(
    launcher: Launcher, launch: Launch, tmp_path: Path
) -> None:
    record = launch("hangs", timeout_s=4.0)

    assert (record.outcome, record.timed_out) == ("failed", True)
    assert "time.sleep(100)" in (tmp_path / "bodies.py").read_text().splitlines()[_line_of(record, rank=1) - 1]


def test_all_skip_is_a_skip(launch: Launch) -> None:
    everyone = launch("all_skip")

    assert (everyone.outcome, everyone.reason) == ("skipped", "not today")


@told_by_ranks
def test_one_skip_is_a_disagreement(launch: Launch) -> None:
    assert launch("one_skips").reason == "ranks disagree: rank 1 skipped, the others did not"


def test_output_of_python_and_of_the_system_is_in_the_ranks_log(launch: Launch) -> None:
    record = launch("prints")
    log = next(f for f in record.fates if f.rank == 0).log_tail

    assert "python says 0" in log
    assert "the system says it" in log


@told_by_ranks
def test_ranks_that_record_different_exact_values_fail(launch: Launch) -> None:
    assert "ranks disagree on a value that must be equal (rank 0: 0, rank 1: 1)" in launch("disagrees").reason


@told_by_ranks
def test_a_timed_loop_left_early_fails(launch: Launch) -> None:
    assert "was left before its last iteration" in launch("breaks_off", world_size=1).reason


@told_by_ranks
def test_a_missing_function_is_named(launch: Launch) -> None:
    assert "has no 'nowhere'" in launch("nowhere", world_size=1).reason


def test_the_fake_backend_runs(launch: Launch) -> None:
    assert launch("nothing", backend="fake").outcome == "passed"


def test_a_backend_this_torch_lacks_is_an_error_with_the_reason(launcher: Launcher, launch: Launch) -> None:
    if launcher.name == "warm":
        with pytest.raises(BackendUnavailable, match=r"'mpi' is not available here: this build of torch has.*gloo"):
            launch("nothing", backend="mpi")
    else:
        assert "mpi" in launch("nothing", backend="mpi", world_size=1).reason.lower()
