"""What is made of a hung rank's stacks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.launch.diagnosis.stacks import is_in_own_code, is_whole, trim, waits_at
from pytest_distbench.worker import leaving, main, membership
from pytest_distbench.worker.line import ControlLine

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


def test_our_own_frames_and_threads_are_left_out() -> None:
    assert trim(DUMP).splitlines() == [
        "Current thread 0x02 (most recent call first):",
        '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 5356 in barrier',
        '  File "/home/me/test_h.py", line 8 in hangs',
    ]


def test_the_users_line_and_what_it_called_are_named() -> None:
    assert waits_at(DUMP) == "test_h.py:8 in hangs, in barrier"


def test_of_a_body_that_is_installed_as_libraries_are_the_line_in_its_own_package_is_named() -> None:
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


def test_nothing_is_made_of_nothing() -> None:
    assert (trim(""), waits_at(""), is_in_own_code("")) == ("", "", False)


def test_a_dump_is_whole_once_it_shows_where_the_rank_began() -> None:
    whole = DUMP.index("run_rank") + len("run_rank")

    assert [is_whole(DUMP[:end]) for end in range(len(DUMP))] == [end >= whole for end in range(len(DUMP))]


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


def test_a_second_dump_cut_anywhere_does_not_hide_the_first() -> None:
    for end in range(len(DUMP)):
        assert trim(DUMP + DUMP[:end]) == trim(DUMP)
        assert waits_at(DUMP + DUMP[:end]) == waits_at(DUMP)


def test_a_second_dump_from_where_the_rank_reports_does_not_hide_where_it_waited() -> None:
    """A peer was ended first, the wait raised, and the elastic agent asked once more."""
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
