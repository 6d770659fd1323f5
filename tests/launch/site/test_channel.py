"""This host's end of its ranks' lines: a Unix socket, with enough files that may be open."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site.local import LONGEST_LINE_BYTES, LocalSite, RunningLaunch, check_ranks
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import Lines, RankWord, rank_event, short_address


def limit(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))


def test_more_files_than_may_be_held_are_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1024, 4096)
    check_ranks(480)

    told = (
        r"a rank of 481 has up to 1,026 files .* may have 1,024 .*: run ulimit -n 1026 .* \(without root up to 4,096\)"
    )
    with pytest.raises(LauncherError, match=told):
        check_ranks(481)

    limit(monkeypatch, 1024, resource.RLIM_INFINITY)
    with pytest.raises(LauncherError, match=r"\(without root up to any number\)"):
        check_ranks(481)

    limit(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    check_ranks(10**6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("channel")


class NoLauncher:
    """Nothing is started."""

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        raise NotImplementedError

    def leftovers(self) -> list[psutil.Process]:
        return []


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[tuple[LocalSite, socket.socket]]:
    """The site of two ranks, and a socket of one that says what it likes."""
    plan = make_plan(folder)
    with socket.socket(socket.AF_UNIX) as rank:
        site = LocalSite(NoLauncher(), plan)
        try:
            with short_address(plan.files.control) as address:
                rank.connect(address)
            yield site, rank
        finally:
            site.close()


def say(rank: int, kind: RankWord = "hello", text: str = "") -> bytes:
    return msgspec.json.encode(rank_event(kind, rank, 0.0, text)) + b"\n"


def ranks_heard(site: LocalSite) -> set[int]:
    """Who has said hello, once the first has."""
    end = time.monotonic() + 60
    while not site.heard.ranks_up and time.monotonic() < end:
        site.listen(0.0)
    return site.heard.ranks_up


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_from_a_rank_are_survived(folder: Path, chunks: list[bytes]) -> None:
    with connected(folder) as (site, rank):
        for chunk in chunks:
            rank.sendall(chunk + b"\n")
        rank.sendall(b"\n" + say(1))

        assert ranks_heard(site) == {1}


def test_events_of_ranks_there_are_not_are_ignored(tmp_path: Path) -> None:
    with connected(tmp_path) as (site, rank):
        for number in (-1, 2, 10**9, 0):
            rank.sendall(say(number))

        assert ranks_heard(site) == {0}


def test_an_endless_line_is_dropped_and_the_next_one_understood(tmp_path: Path) -> None:
    with connected(tmp_path) as (site, rank):
        rank.setblocking(False)
        waiting = b"x" * 4 * LONGEST_LINE_BYTES + b"\n" + say(1)
        end = time.monotonic() + 60
        while waiting and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                waiting = waiting[rank.send(waiting[:65536]) :]
            site.listen(0.0)

        assert ranks_heard(site) == {1}


def test_what_a_rank_could_not_end_is_kept_and_its_process_is_the_one_that_has_connected(tmp_path: Path) -> None:
    with connected(tmp_path) as (site, rank):
        rank.sendall(say(1) + say(1, "done") + say(1, "remark", "threads it had started still ran"))
        ranks_heard(site)

        assert site.heard.remarks() == {1: "threads it had started still ran"}

    # Else a body that has got hold of the line could have pytest end any process
    with connected(tmp_path) as (site, rank):
        rank.sendall(b'{"kind": "hello", "rank": 0, "at": 0.0, "pid": 1}\n' + say(1))
        ranks_heard(site)

        assert site.pids == {1: os.getpid()}


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"half a li"
    taken = Lines()

    assert [line for i in range(0, len(data), size) for line in taken.take(data[i : i + size])] == lines
