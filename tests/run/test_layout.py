"""Ranks on several hosts: the same ranks on fewer hosts are another measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.launch.starters.contract import Engine
from pytest_distbench.launch.starters.table import LAUNCHERS, LauncherKind
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Command
from pytest_distbench.run.layout import LayoutAround, layout_text


def on_nodes_of(most: int, asked: list[tuple[int, bool]]) -> LauncherKind:
    def layout(ranks: int, *, on_gpus: bool) -> Sequence[int]:
        asked.append((ranks, on_gpus))
        return [most] * (ranks // most) + [ranks % most] * bool(ranks % most)

    return LauncherKind(help="", make=LAUNCHERS["warm"].make, hosts="many", layout=layout)


def test_ranks_on_several_hosts_are_a_condition_and_the_launcher_is_asked_once(tmp_path: Path) -> None:
    asked: list[tuple[int, bool]] = []
    around = LayoutAround(on_nodes_of(2, asked))
    found = [around.conditions(make_plan(tmp_path, world_size=size)) for size in (4, 2, 4)]

    assert found == [{"nodes": "2x2"}, {}, {"nodes": "2x2"}]
    assert asked == [(4, False), (2, False)]


def test_what_no_launcher_of_ranks_starts_and_ranks_of_one_host_have_none(tmp_path: Path) -> None:
    asked: list[tuple[int, bool]] = []
    command = replace(make_plan(tmp_path, world_size=4), work=Command(words=["true"]))

    assert LayoutAround(on_nodes_of(2, asked)).conditions(command) == {}
    assert LayoutAround(LAUNCHERS["warm"]).conditions(make_plan(tmp_path, world_size=4)) == {}
    assert asked == []


@pytest.mark.parametrize(("layout", "text"), [([4, 4], "2x4"), ([4, 3], "1x4+1x3"), ([8, 8, 2], "2x8+1x2")])
def test_a_last_host_with_fewer_ranks_is_told_apart(layout: list[int], text: str) -> None:
    assert layout_text(layout) == text


def test_a_launcher_of_an_engine_s_is_told_which(tmp_path: Path) -> None:
    around = LayoutAround(LAUNCHERS["cmd"], Engine(template="", ranks_per_node=3))

    assert around.conditions(make_plan(tmp_path, world_size=8)) == {"nodes": "2x3+1x2"}
