"""A rank's end: threads and exit handlers run as in any Python process; and what it says of an exception."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.processes import wait_for

from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.worker import bodies
from pytest_distbench.worker.leaving import classify, user_frames, without_values

PRELUDE = """
import atexit, os, sys, tempfile, threading, time, weakref
from concurrent.futures import ThreadPoolExecutor
from pytest_distbench.worker import forked, leaving

leaving.LEAVING_S = {limit_s}

def leave():
    leaving.leave(lambda what: print("told:", what, flush=True))
    print("left", flush=True)
    os._exit(0)
"""


def run(code: str, *, limit_s: float = 60.0) -> list[str]:
    command = [sys.executable, "-c", PRELUDE.format(limit_s=limit_s) + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.spawn
def test_threads_are_waited_for_and_handlers_run() -> None:
    """Each in a process of its own, which torch is loaded for once."""
    said = {
        "atexit.register(print, 'first'); atexit.register(print, 'last')": ["last", "first"],
        "atexit.register(lambda: 1 / 0); atexit.register(print, 'a')": ["a"],
        "atexit.register(sys.exit, 3); atexit.register(print, 'a')": ["a"],
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()": ["thread"],
        "ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.3), print('future')))": ["future"],
        "d = tempfile.TemporaryDirectory(); atexit.register(lambda: print(os.path.exists(d.name)))": ["True"],
    }
    each = f"for code in {list(said)}:\n    if os.fork() == 0:\n        exec(code)\n        leave()\n    os.wait()"

    assert run(each) == [line for lines in said.values() for line in (*lines, "left")]


@pytest.mark.spawn
def test_what_goes_on_at_the_end_is_named_and_ended() -> None:
    (told,) = run("threading.Thread(target=time.sleep, args=(1000,), name='poll').start()\nleave()", limit_s=0.5)
    assert told == "told: threads it had started still ran (poll) after 0 s, and were ended"

    (told,) = run("def slow():\n    time.sleep(1000)\natexit.register(slow)\nleave()", limit_s=0.5)
    assert told.startswith("told: its exit handlers were not done")


@pytest.mark.spawn
def test_a_forked_process_leaves_its_parents_handlers_and_folders_to_the_parent() -> None:
    lines = run("""
folder = tempfile.TemporaryDirectory()
atexit.register(print, "the parent's")
if os.fork() == 0:
    forked.forget_parents_exit()
    own = tempfile.TemporaryDirectory()
    atexit.register(lambda: print(os.path.exists(folder.name), os.path.exists(own.name)))
    print(own.name)
    leave()
os.wait()
print(os.path.exists(folder.name), flush=True)
leave()
""")

    assert lines[1:] == ["True True", "left", "True", "the parent's", "left"]


@pytest.mark.spawn
def test_shared_memory_goes_with_the_process_that_made_it() -> None:
    name, _, _ = run("""
from multiprocessing import resource_tracker, shared_memory
resource_tracker.ensure_running()
if os.fork() == 0:
    forked.forget_parents_exit()
    print(shared_memory.SharedMemory(create=True, size=100).name)
    leave()
os.wait()
leave()
""")

    wait_for(lambda: not Path("/dev/shm", name).exists())


@pytest.mark.spawn
def test_files_that_modules_hold_are_written_and_their_temporary_ones_go(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import tempfile

class Lazy:
    @property
    def __class__(self):
        raise RuntimeError("it was asked")

LAZY = Lazy()
DATA = [(i, str(i)) for i in range(2_000_000)]

class Log:
    def __init__(self):
        self.files = {"b": open("b.txt", "w")}

log = open("a.txt", "w")
log.write("a")
LOG = Log()
LOG.files["b"].write("b")
named = tempfile.NamedTemporaryFile(dir=".")
""")
    assert run(f"os.chdir({str(tmp_path)!r}); sys.path.insert(0, ''); import mine\nleave()") == ["left"]

    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.txt", "b.txt", "mine.py"]
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["a", "b"]


@pytest.mark.spawn
def test_a_file_that_was_open_before_the_rank_began_is_not_the_rank_s(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        PRELUDE.format(limit_s=60)
        + """
import gc
before = open("a.txt", "w")
before.write("a")
gc.freeze()
own = open("b.txt", "w")
own.write("b")
leave()
"""
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=120)

    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["", "b"]


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


def reported(raised: BaseException) -> ErrorReport:
    with pytest.raises(type(raised)) as caught:
        raise raised
    return classify(caught.value)[2]


@pytest.mark.parametrize("kind", [pytest.skip.Exception, unittest.SkipTest])
def test_a_skip_is_no_failure_and_has_its_reason(kind: type[Exception]) -> None:
    outcome, reason, _ = classify(kind("no data"))

    assert (outcome, reason) == ("skipped", "no data")


def test_what_the_user_raised_is_told_from_what_torch_raised_on_top() -> None:
    report = reported(ValueError("bad"))
    assert (report.kind, report.message) == ("ValueError", "bad")
    assert 'test_leaving.py", line' in report.traceback
    assert report.traceback.endswith("ValueError: bad\n")
    assert (report.torch_errors, report.began_in_torch) == ([], False)

    class DistError(RuntimeError):
        __module__ = "torch.distributed"

    on_top = DistError("connection closed")
    on_top.__context__ = ValueError("bad")
    report = reported(on_top)
    assert (report.kind, report.message) == ("ValueError", "bad")
    assert (report.torch_errors, report.began_in_torch) == (["DistError: connection closed"], False)

    assert raised_by("raise KeyError('xid')", "/home/me/torch/train.py").torch_errors == []

    # As CUDA's errors do, which are plain RuntimeErrors
    native = raised_by("import torch\ntorch.ones(2) @ torch.ones(3)", "/home/me/train.py")
    own = raised_by("raise RuntimeError('CUDA error: mine')", "/home/me/train.py")
    assert native.began_in_torch
    assert native.torch_errors[0].startswith("RuntimeError: inconsistent tensor size")
    assert (own.torch_errors, own.began_in_torch) == ([], False)


def raised_by(code: str, file: str) -> ErrorReport:
    with pytest.raises(Exception) as caught:  # noqa: PT011 any
        exec(compile(code, file, "exec"))
    return classify(caught.value)[2]


def as_fake(code: str, file: str) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 any
        exec(compile(code, file, "exec"))
    outcome, report = without_values(caught.value, classify(caught.value)[2])
    return outcome, report.message


def test_without_values_a_failure_asks_whether_it_needs_them() -> None:
    outcome, message = as_fake("assert 0, 'all ranks agree'", "/home/me/train.py")
    assert (outcome, message) == ("skipped", "not run: needs values, and the backend fake has none: all ranks agree")
    assert as_fake("assert 0, 'must be int'", "/x/site-packages/torch/distributed/x.py")[0] == "failed"

    outcome, message = as_fake("import torch\ntorch.empty(2**60)", "/home/me/train.py")
    assert outcome == "failed"
    assert "(the backend fake transfers no data; does the body need what it received?)" in message.splitlines()[0]

    assert classify(type("Skipped", (Exception,), {"__module__": "mine"})("x"))[:2] == ("failed", "")

    assert "a body returns when it is done" in reported(SystemExit(0)).message
    assert reported(SystemExit(3)).message == "3"


def test_long_texts_and_chains_of_causes_are_cut() -> None:
    message = reported(ValueError("a" * 5000 + "b" * 5000)).message
    assert message.startswith("a" * 4000 + "\n... 2000 characters left out ...\nb")
    assert reported(ValueError("\ud800")).message == "\\ud800"

    first = ValueError("bad")
    error: Exception = first
    for _ in range(5000):
        error, before = RuntimeError("then"), error
        error.__context__ = before

    assert reported(error).message == "then"

    class Empty(RuntimeError):
        __module__ = "torch.distributed"

        def __len__(self) -> int:
            return 0

    error = ValueError("bad")
    error.__cause__ = Empty("connection closed")
    assert reported(error).torch_errors == ["Empty: connection closed"]


def test_an_exception_without_a_text_is_reported() -> None:
    assert reported(Unspeakable()).message == "<Unspeakable whose text cannot be made: RuntimeError>"


def test_a_stream_that_ends_the_process_does_not_hide_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def write(self, text: str) -> None:
            raise SystemExit(0)

    monkeypatch.setattr("sys.stderr", Stream())

    assert classify(ValueError("bad"))[2].message == "bad"


def test_an_error_in_the_report_itself_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_distbench.worker.leaving._classify", None)

    assert reported(ValueError("bad")).message == "its report could not be made"


def test_a_traceback_begins_in_the_body_whoever_has_called_it() -> None:
    def body(rank: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        bodies.call(body, cast(Any, SimpleNamespace(params={})))  # as an elastic worker does, from a file of its own

    found = user_frames(raised.value)
    assert found is not None
    assert found.tb_frame.f_code.co_name == "body"
