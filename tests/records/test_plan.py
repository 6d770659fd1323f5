"""A launch as it was asked for and as it is made, its files and variables, and what goes over its socket."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import msgspec
import pytest
from support.plans import BODY, make_plan

import pytest_distbench
from pytest_distbench.records import launch_files
from pytest_distbench.records.launch_files import CONTRACT, LaunchFiles, is_of_a_group, open_left
from pytest_distbench.records.plan import BodyReference, Command, LaunchPlan, Ranks, Task, Work
from pytest_distbench.records.wire import (
    collective_s,
    heartbeat_s,
    short_address,
    start_s,
    store_s,
    variables_from_wire,
    variables_to_wire,
)

SCRIPT = BodyReference(file="/repo/train.py", arguments=["--out={launch_dir}", "/repo/a.yaml", "--config=/repo/b.yaml"])
EACH = [Ranks(body=BODY, params={"a": 1}, seeds=[1, 2], attached=1), Command(words=["true"], makes_group=False)]


@pytest.mark.parametrize("work", EACH, ids=lambda work: work.kind)
def test_a_plan_with_each_kind_is_read_back_as_it_was_written(tmp_path: Path, work: Work) -> None:
    plan = make_plan(tmp_path, work=work)
    plan.files.plan.write_bytes(msgspec.json.encode(plan))

    assert LaunchPlan.read_from(plan.files.plan) == plan


def test_a_plan_checks_the_kind_of_its_work_and_counts_its_processes(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    assert plan.expect(Ranks) == plan.expect(Task) == plan.work
    with pytest.raises(AssertionError, match="wanted Command, found Ranks"):
        plan.expect(Command)

    files = LaunchFiles(tmp_path)
    assert Ranks(body=BODY).processes(4) == 4
    assert Ranks(body=BODY, stands_for=3).processes(4) == 1
    assert (EACH[1].processes(4), EACH[1].outputs(4), EACH[1].logs(files, 4)) == (4, 1, [(0, files.log(0))])

    assert [work.kind for work in EACH] == ["ranks", "command"]


def test_words_of_a_command_line_are_filled_and_paths_lead_elsewhere() -> None:
    script, command = Ranks(body=SCRIPT), Command(words=["/repo/run.sh", "--config=/repo/b.yaml", "-n"])

    assert script.with_words(str.upper).body.arguments[0] == "--OUT={LAUNCH_DIR}"
    there = script.with_files(lambda path: path.replace("/repo", "/tree")).body
    assert there.file == "/tree/train.py"
    assert there.arguments == ["--out={launch_dir}", "/tree/a.yaml", "--config=/tree/b.yaml"]
    words = command.with_files(lambda path: f"/tree{path}").words
    assert words == ["/tree/repo/run.sh", "--config=/tree/repo/b.yaml", "-n"]


def test_names_of_files_stand_in_one_module() -> None:
    modules = Path(pytest_distbench.__file__).parent.rglob("*.py")
    assert [path for path in modules if NAME.search(path.read_text())] == [Path(launch_files.__file__)]

    of_a_rank = [
        file(rank) for file in (FILES.report, FILES.log, FILES.stacks, FILES.flight, FILES.groups) for rank in (1, 11)
    ]
    of_all = [FILES.plan, FILES.control, FILES.sockets, FILES.launcher_log, FILES.torchrun_logs]
    assert len({*of_a_rank, *of_all}) == 15

    assert [name for name in CONTRACT if not is_of_a_group(name)] == ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]


FILES = LaunchFiles(Path("/launch1"))

NAME = re.compile(
    r"""plan\.json["']|/ ["']control["']|"""
    r"""rank\{[\w.]+\}\.(json|log)|(stacks|flight|groups)\{|launcher\.log|nccl-flight|["']sockets"""
)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would block for ever, a device might never end."""
    os.mkfifo(tmp_path / "rank0.log")
    (tmp_path / "rank1.log").symlink_to("/dev/zero")
    (tmp_path / "rank2.log").write_text("words")

    for rank in (0, 1):
        with pytest.raises(OSError, match="no regular file"):
            open_left(tmp_path / f"rank{rank}.log")
    with open_left(tmp_path / "rank2.log") as file:
        assert file.read() == b"words"


def test_variables_that_are_no_utf_8_survive_json() -> None:
    given = {"PATH": "/bin", "ODD": os.fsdecode(b"\xff\xfe"), "WORD": "gr\u00fc\u00df"}
    assert variables_from_wire(json.loads(json.dumps(variables_to_wire(given)).encode())) == given


@pytest.mark.parametrize("length", [5, 200])
def test_a_socket_is_reached_at_its_short_address_however_long_its_path(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with short_address(folder / "s") as address:
            server.bind(address)
        server.listen()
        with short_address(folder / "s") as address:
            client.connect(address)
            assert len(os.fsencode(address)) <= 107

    assert (folder / "s").is_socket()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with short_address(tmp_path / ("x" * 200)):
        assert len(os.listdir("/proc/self/fd")) == before + 1

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("timeout_s", [10.0, 240.0, 301.0, 600.0, 3600.0, 86_400.0])
def test_nccls_watchdog_never_ends_a_rank_before_the_launch_does(timeout_s: float) -> None:
    assert collective_s("nccl", timeout_s, {}) > timeout_s
    assert heartbeat_s(timeout_s) > timeout_s


@pytest.mark.parametrize(
    ("backend", "variables"),
    [("gloo", {}), ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "1"}), ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "True"})],
)
def test_what_raises_does_so_between_the_rendezvous_and_a_launchs_end(backend: str, variables: dict[str, str]) -> None:
    assert store_s(100.0) < collective_s(backend, 100.0, variables) < 100.0


def test_torchs_limit_is_not_made_shorter_and_ten_thousand_ranks_have_longer_to_come_up() -> None:
    assert heartbeat_s(10.0) == 480.0

    assert start_s(10_000) - start_s(2) == pytest.approx(99.98)
