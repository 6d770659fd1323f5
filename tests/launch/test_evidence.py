"""Evidence of why a rank failed: its log, the watchdog's lines, its flight recorder dump, its stacks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import documents
from support.nccl_texts import LATE, TEXTS, watchdog_log

from pytest_distbench.launch import evidence
from pytest_distbench.launch.evidence import is_in_own_code, raised_at, read_abort, trim, waits_at, with_entered
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.launch import ErrorReport, RankFate
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.worker import leaving, main, membership
from pytest_distbench.worker.line import ControlLine

THROWN = "terminate called after throwing an instance of"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("what():  nothing\n", None),
        ("terminate called without an active exception\n", None),
        (f"{THROWN} 'a::B<int>'\nFatal Python error: Aborted\n", None),
        (f"x\n{THROWN} 'a::B<int>'\n  what():  no\nmore\n", ("a::B<int>", "a::B<int>: no")),
        (f"{THROWN} 'gloo::Gone'\n  what():  [enforce fail at a.cc:1] 1.\n", ("gloo::Gone", "gloo::Gone: 1.")),
    ],
)
def test_an_exception_is_its_class_and_the_first_line_of_its_words(
    tmp_path: Path, text: str, found: tuple[str, str] | None
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(text)

    abort = evidence.read_uncaught(log)
    assert (None if abort is None else (abort.kind, abort.message)) == found
    assert evidence.read_dump(log) == ""


@pytest.mark.parametrize("ends", ["os.abort()", "os.kill(os.getpid(), signal.SIGSEGV)", "ctypes.string_at(0)"])
@pytest.mark.spawn
def test_the_stacks_that_this_python_writes_are_found_behind_what_was_printed(tmp_path: Path, ends: str) -> None:
    log = tmp_path / "rank0.log"
    code = f"import ctypes, faulthandler, os, signal\nfaulthandler.enable()\nprint('step 1', flush=True)\n{ends}\n"
    with log.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, check=False, timeout=60)
    dump = evidence.read_dump(log)

    assert evidence.before_dump(log.read_text()) == "step 1"
    assert dump.startswith("Current thread 0x")
    assert dump.splitlines()[-1].endswith('File "<string>", line 4 in <module>')


FULL, GONE = (TEXTS[n][0].removeprefix("DistBackendError: ") for n in ("full shared memory", "a peer that is gone"))


def abort_of(folder: Path, text: str) -> ErrorReport:
    log = folder / "rank0.log"
    log.write_text(text)
    found = read_abort(log)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("step 1\n" + watchdog_log(LATE), "wait", LATE.removeprefix("[Rank 0] ")),
        (watchdog_log(FULL), "cause", FULL),
        (watchdog_log(GONE), "victim", GONE),
    ],
)
def test_an_abort_is_classified_as_wait_cause_or_victim(tmp_path: Path, text: str, kind: str, message: str) -> None:
    found = abort_of(tmp_path, text)
    sign = evidence.read_sign(found.torch_errors[0])

    assert "SeqNum" not in tail(tmp_path / "rank0.log").partition("what()")[0]
    assert (sign.kind if sign is not None else "cause", found.message) == (kind, message)


def test_a_late_collective_has_the_name_of_its_function_and_its_number(tmp_path: Path) -> None:
    found = abort_of(tmp_path, watchdog_log(LATE.replace("ALLREDUCE", "_ALLGATHER_BASE")))

    assert evidence.late_collective(found.message) == ("all_gather_into_tensor", 7)


@pytest.mark.parametrize("text", ["", "my watchdog barked\n", "\0\xff" * 1000])
def test_a_log_without_its_words_says_nothing(tmp_path: Path, text: str) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(text)

    assert read_abort(log) is None
    assert read_abort(tmp_path / "none.log") is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flight")


FATE = RankFate(rank=0, outcome="failed", phase="body", how="hung")


def entry(number: int, **changes: object) -> dict[str, object]:
    """An entry as torch 2.13 writes it, with a field that is not read."""
    return {
        "record_id": number,
        "time_created_ns": number,
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": number,
        "process_group": ["0", "default_pg"],
        "input_dtypes": ["Float"],
        "input_sizes": [[8]],
        "retired": False,
        "state": "scheduled",
        **changes,
    }


def entered(folder: Path, recordings: object, *, groups: str = "") -> tuple[RankFate, bool]:
    """What a rank's recorders say about it, and whether it is idle."""
    files = LaunchFiles(folder)
    files.flight(0).write_bytes(msgspec.json.encode(recordings))
    if groups:
        files.groups(0).write_text(groups)
    return with_entered(FATE, files)


def collective_of(fate: RankFate) -> tuple[int | None, str, bool]:
    return fate.collective_number, fate.collective, fate.collective_is_over


def test_a_recording_has_the_last_collective_of_each_recorder(tmp_path: Path) -> None:
    found, _ = entered(tmp_path, {"": {"entries": [entry(2), entry(1, retired=True)]}}, groups='{"0": [0, 1]}')
    of_pairs, _ = entered(tmp_path, {"": {"entries": [entry(1, is_p2p=True)]}})

    assert collective_of(found) == (2, "all_reduce of float32[8]", False)
    assert (found.entered, found.groups) == ({"0": 2}, {"0": [0, 1]})
    assert collective_of(of_pairs) == (0, "none", True)


@pytest.mark.parametrize(
    ("count", "stalled_s", "went_on"),
    [(40, 0.5, 41), (40, 60.0, 0), (4, 0.5, 0)],
    ids=["goes on", "hangs", "began"],
)
def test_a_rank_that_still_enters_collectives_when_its_time_is_up_does_not_hang(
    tmp_path: Path, count: int, stalled_s: float, went_on: int
) -> None:
    made = [entry(number, time_created_ns=int(1e9 * (1000 + number / 5))) for number in range(1, count + 1)]
    files, last_s = LaunchFiles(tmp_path), 1000 + count / 5
    files.flight(0).write_bytes(msgspec.json.encode({"": {"entries": made}}))
    os.utime(files.flight(0), (last_s, last_s + stalled_s))

    assert with_entered(FATE, files)[0].went_on == went_on
    assert with_entered(msgspec.structs.replace(FATE, how="raised ValueError"), files)[0].went_on == 0


@pytest.mark.parametrize(
    ("group", "text"), [(["1", "undefined"], "in group 1"), (["1"], "in group 1"), (["1", "pair"], "in group pair")]
)
def test_another_group_than_the_default_one_is_named(tmp_path: Path, group: list[str], text: str) -> None:
    found, _ = entered(tmp_path, {"": {"entries": [entry(1, process_group=group)]}})

    assert found.collective == f"all_reduce of float32[8] {text}"


def of_nccl(number: int, **changes: object) -> dict[str, object]:
    """An entry of NCCL's own recorder, as torch writes it."""
    return entry(number, profiling_name="nccl:all_reduce", **changes)


def test_of_two_recorders_both_are_read(tmp_path: Path) -> None:
    """Under NCCL the generic one holds our own barriers, on gloo: it alone would say that the rank came to all."""
    barrier = entry(9, profiling_name="gloo:barrier", process_group=["1", "undefined"], retired=True)
    recordings = {"": {"entries": [barrier]}, "nccl": {"entries": [of_nccl(2, state="started")]}}
    found, _ = entered(tmp_path, recordings, groups='{"0": [0, 1], "1": [0, 1]}')

    assert collective_of(found) == (2, "all_reduce of float32[8]", False)
    assert (found.entered, found.unfinished) == ({"1": 9, "nccl 0": 2}, {"nccl 0": 2})
    assert found.groups["nccl 0"] == [0, 1]


def test_a_rank_waits_in_the_first_that_its_gpu_has_not_done(tmp_path: Path) -> None:
    """The host runs ahead: number 5 is enqueued while number 3 waits for another rank."""
    entries = [of_nccl(1, retired=True), of_nccl(2, state="completed"), *map(of_nccl, (3, 4, 5))]
    found, is_idle = entered(tmp_path, {"nccl": {"entries": entries}})

    assert (found.collective_number, found.entered, found.unfinished) == (3, {"nccl 0": 5}, {"nccl 0": 3})
    assert not is_idle


@pytest.mark.parametrize(
    ("recordings", "idle"),
    [
        ({"nccl": {"entries": [of_nccl(1, state="completed")]}}, True),
        ({"nccl": {"entries": [of_nccl(1, retired=True), of_nccl(1, is_p2p=True)]}}, False),
        ({"nccl": {}}, False),
        ({"": {"entries": [entry(1, retired=True)]}}, False),
    ],
    ids=["all done", "a receive is not", "nothing recorded", "another backend's"],
)
def test_a_rank_is_idle_only_if_nccls_recorder_says_so(
    tmp_path: Path, recordings: dict[str, object], idle: bool
) -> None:
    assert entered(tmp_path, recordings)[1] == idle


@given(st.one_of(st.binary(max_size=200), documents.map(msgspec.json.encode)))
def test_a_damaged_recorder_says_nothing(folder: Path, data: bytes) -> None:
    files = LaunchFiles(folder)
    files.flight(0).write_bytes(data)
    files.groups(0).write_bytes(data)
    found, _ = with_entered(FATE, files)

    assert found.collective_number is None or found.collective_number >= 0


DUMP = """Thread 0x01 (most recent call first):
  File "/x/site-packages/pytest_distbench/worker/line.py", line 58 in _die_with_pytest
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x02 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 5356 in barrier
  File "/home/me/test_h.py", line 8 in hangs
  File "/x/site-packages/pytest_distbench/worker/main.py", line 106 in _measure
  File "/x/site-packages/pytest_distbench/worker/main.py", line 75 in run
  File "/x/site-packages/pytest_distbench/worker/main.py", line 60 in run_rank
  File "<string>", line 1 in <module>
"""


def test_our_own_frames_are_left_out_and_the_line_of_the_users_package_is_named() -> None:
    assert trim(DUMP).splitlines() == [
        "Current thread 0x02 (most recent call first):",
        '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 5356 in barrier',
        '  File "/home/me/test_h.py", line 8 in hangs',
    ]

    called = """  File "/x/site-packages/accelerate/state.py", line 9 in gather
  File "/x/site-packages/mine/step.py", line 8 in hangs
  File "/usr/lib/python3.11/contextlib.py", line 3 in inner
  File "/x/site-packages/mine/train.py", line 5 in train
  File "/x/site-packages/pytest_distbench/worker/main.py", line 200 in _run_script
"""
    installed = DUMP.replace('  File "/home/me/test_h.py", line 8 in hangs\n', called)

    assert waits_at(installed) == "step.py:8 in hangs, in gather"
    assert not is_in_own_code(installed)
    assert waits_at(DUMP.replace("/home/me/", "/x/site-packages/")) == "test_h.py:8 in hangs, in barrier"


def test_a_rank_that_sleeps_in_code_of_its_own_waits_for_nobody() -> None:
    call = next(line for line in DUMP.splitlines(keepends=True) if "distributed_c10d" in line)
    ours = '  File "/x/site-packages/pytest_distbench/worker/context.py", line 8 in take_turn\n'

    assert is_in_own_code(DUMP.replace(call, ""))
    assert not is_in_own_code(DUMP)
    assert not is_in_own_code(DUMP.replace(call, ours))
    assert not is_in_own_code(DUMP.replace("/home/me/", "/x/site-packages/"))


@pytest.mark.parametrize("home", ["/home/me/torch/", "/home/me/pytest_distbench/suites/"])
def test_a_folder_of_the_users_may_be_called_as_torch_or_this_package(home: str) -> None:
    asleep = next(line for line in DUMP.splitlines(keepends=True) if "distributed_c10d" in line)
    mine = DUMP.replace("/home/me/", home)

    assert waits_at(mine) == "test_h.py:8 in hangs, in barrier"
    assert is_in_own_code(mine.replace(asleep, f'  File "{home}data.py", line 8 in load\n'))


def test_a_dump_is_whole_once_it_shows_where_the_rank_began() -> None:
    whole = DUMP.index("run_rank") + len("run_rank")

    assert [evidence.is_whole(DUMP[:end]) for end in range(len(DUMP))] == [end >= whole for end in range(len(DUMP))]


def test_the_frames_that_are_looked_for_are_the_workers() -> None:
    """A rename there would blind the diagnosis of hangs."""
    for module, functions in (
        (main, {"run_rank", "run", "_measure", "_end"}),
        (membership, {"join_group", "leave_group"}),
        (leaving, {"leave"}),
    ):
        file = Path(module.__file__)
        nodes = ast.walk(ast.parse(file.read_text()))

        assert functions <= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert file.parts[-3:-1] == ("pytest_distbench", "worker")
    assert hasattr(ControlLine, "_die_with_pytest")


def test_a_second_dump_does_not_hide_where_the_rank_waited() -> None:
    for end in range(len(DUMP)):
        assert trim(DUMP + DUMP[:end]) == trim(DUMP)
        assert waits_at(DUMP + DUMP[:end]) == waits_at(DUMP)

    # A peer was ended first, the wait raised, and the elastic agent asked once more
    reports = """Current thread 0x02 (most recent call first):
  File "/usr/lib/python3.11/traceback.py", line 140 in format_exception
  File "/x/site-packages/pytest_distbench/worker/failure.py", line 36 in classify
  File "/x/site-packages/pytest_distbench/worker/main.py", line 83 in run
  File "/x/site-packages/pytest_distbench/worker/main.py", line 60 in run_rank
"""

    assert waits_at(DUMP + reports) == waits_at(DUMP)
    assert trim(DUMP + reports) == trim(DUMP)
    assert "format_exception" in trim(reports)


@given(st.text(max_size=400))
def test_any_text_may_stand_for_stacks(text: str) -> None:
    for dump in (text, f"Current thread 0x1 (most recent call first):\n{text}", f'  File "{text}", line 3 in f\n'):
        assert isinstance(trim(dump), str)
        assert isinstance(waits_at(dump), str)


@pytest.mark.parametrize("room", ["elastic/worker", "layouts", "workloads"])
def test_the_users_line_is_named_whatever_room_of_ours_it_calls(room: str) -> None:
    frames = [("/home/me/pytest_distbench/train.py", 7, "main"), (f"/env/pytest_distbench/{room}/loop.py", 3, "go")]
    lines = "".join(f'  File "{file}", line {line}, in {name}\n    call()\n' for file, line, name in frames)

    assert raised_at(f"Traceback (most recent call last):\n{lines}ValueError") == "train.py:7 in main, in go"
