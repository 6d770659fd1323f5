"""What stands in a log of a rank that a signal has ended; what becomes of it is in test_fates.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_distbench.launch.diagnosis.crash import before_dump, read_dump, read_uncaught


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("what():  nothing\n", None),
        ("terminate called without an active exception\n", None),
        ("terminate called after throwing an instance of 'a::B<int>'\nFatal Python error: Aborted\n", None),
        ("x\nterminate called after throwing an instance of 'a::B<int>'\n  what():  no\nmore\n", ("a::B<int>", "no")),
        (
            "terminate called after throwing an instance of 'gloo::Gone'\n  what():  [enforce fail at a.cc:1] 1.\n",
            ("gloo::Gone", "1."),
        ),
    ],
)
def test_an_exception_is_its_class_and_the_first_line_of_its_words(
    tmp_path: Path, text: str, found: tuple[str, str] | None
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(text)

    assert read_uncaught(log) == found
    assert read_dump(log) == ""


@pytest.mark.parametrize("ends", ["os.abort()", "os.kill(os.getpid(), signal.SIGSEGV)", "ctypes.string_at(0)"])
@pytest.mark.spawn
def test_the_stacks_that_this_python_writes_are_found_behind_what_was_printed(tmp_path: Path, ends: str) -> None:
    log = tmp_path / "rank0.log"
    code = f"import ctypes, faulthandler, os, signal\nfaulthandler.enable()\nprint('step 1', flush=True)\n{ends}\n"
    with log.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, check=False, timeout=60)
    dump = read_dump(log)

    assert before_dump(log.read_text()) == "step 1"
    assert dump.startswith("Current thread 0x")
    assert dump.splitlines()[-1].endswith('File "<string>", line 4 in <module>')


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert (read_uncaught(tmp_path / "no"), read_dump(tmp_path / "no")) == (None, "")
