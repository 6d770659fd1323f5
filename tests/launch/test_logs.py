"""What ranks print: nothing is lost, and no log is too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan

from pytest_distbench.launch.logs import LogFollower, tail


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def test_a_tail_is_the_last_lines_and_empty_where_there_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\nc\n")

    assert tail(tmp_path / "log", 2) == "b\nc"
    assert tail(tmp_path / "none") == ""


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
