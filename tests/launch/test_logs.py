"""What ranks print: nothing is lost, and no log is too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan

from pytest_distbench.launch.logs import TAIL_LINES, LogFollower, error_tail, tail


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def test_a_tail_is_the_last_lines_and_empty_where_there_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\nc\n")

    assert tail(tmp_path / "log", 2) == "b\nc"
    assert tail(tmp_path / "none") == ""


def test_what_torch_says_of_names_in_a_network_without_dns_is_left_out_of_a_tail(tmp_path: Path) -> None:
    noise = (
        "[W1125 14:57:39.374144666 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    )
    other = noise.replace("hostname of the client socket", "client socket")
    (tmp_path / "log").write_text(f"{noise}\na\n{noise}\n{other}\n")

    assert tail(tmp_path / "log", 2) == f"a\n{other}"


def test_the_first_traceback_is_shown_though_a_launcher_has_told_much_since(tmp_path: Path) -> None:
    deep = [f'[rank1]:   File "x.py", line {n}' for n in range(40)]
    traceback = ["[rank1]: Traceback (most recent call last):", *deep, "[rank1]: ValueError: bad", "[rank1]: not of it"]
    summary = [f"summary {n}" for n in range(100)]
    (tmp_path / "log").write_text("\n".join(["start", *traceback, *summary]))

    shown = error_tail(tmp_path / "log").splitlines()
    assert len(shown) <= TAIL_LINES
    assert shown[0] == "[rank1]: Traceback (most recent call last):"
    assert shown[shown.index("...") - 1] == "[rank1]: ValueError: bad"
    assert shown[-1] == "summary 99"


def test_a_traceback_at_the_end_is_part_of_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("start\nTraceback (most recent call last):\n  File x\nValueError: bad\n")

    assert error_tail(tmp_path / "log") == tail(tmp_path / "log")


@given(st.binary(max_size=500), st.integers(1, 40))
def test_a_tail_is_at_most_that_long(folder: Path, data: bytes, lines: int) -> None:
    (folder / "log").write_bytes(data)

    assert len(tail(folder / "log", lines).splitlines()) <= lines


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_a_followed_log_loses_nothing_however_it_is_cut(folder: Path, chunks: list[bytes]) -> None:
    plan = make_plan(folder, world_size=1)
    log = plan.files.log(0)
    log.write_bytes(b"")
    seen: list[str] = []
    follower = LogFollower(plan, lambda rank, line: seen.append(line))
    for chunk in chunks:
        with log.open("ab") as file:
            file.write(chunk)
        follower.poll()
    follower.finish()
    whole = b"".join(chunks).decode(errors="replace")

    assert [line for line in seen if line] == [line for part in whole.split("\n") for line in part.split("\r") if line]
