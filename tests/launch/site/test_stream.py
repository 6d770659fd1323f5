"""What a controller and a relay say to each other over one stream, and the stream itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan

from pytest_distbench.launch.site import Exit, stream
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import read_work
from pytest_distbench.records.wire import Lines, RankEvent


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"half a li"
    taken = Lines()

    assert [line for i in range(0, len(data), size) for line in taken.take(data[i : i + size])] == lines


@pytest.mark.parametrize(
    "word",
    [
        stream.Message(what="said", event=RankEvent(kind="progress", rank=1, at=2.5, text="\u00e9")),
        stream.Message(what="wrote", rank=0, kind="log", offset=3, data=bytes(range(256))),
        stream.Message(what="ended", ended=Exit(codes={0: -9, 11: 1})),
        stream.Message(what="done", ranks=[1], ended=Exit(stuck={1: "there"}, oom_kills={0: 2})),
    ],
)
def test_a_word_arrives_as_it_was_said(word: stream.Word) -> None:
    assert msgspec.json.decode(msgspec.json.encode(word), type=stream.Message) == word


def test_an_order_arrives_as_it_was_given(tmp_path: Path) -> None:
    order = stream.Message(what="open", plan=make_plan(tmp_path), places={3: {"RANK": "3"}}, began_ns=2**62)

    assert msgspec.json.decode(msgspec.json.encode(order), type=stream.Message, dec_hook=read_work) == order


def test_every_kind_of_file_has_a_name_for_each_rank(tmp_path: Path) -> None:
    named = {stream.place_of(LaunchFiles(tmp_path), kind, rank) for kind in stream.EVERYTHING for rank in range(2)}

    assert len(named) == 2 * len(stream.EVERYTHING)
