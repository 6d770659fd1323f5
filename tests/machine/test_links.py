"""How GPUs are joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.machine.links import kinds
from pytest_distbench.testing.nvml import Card, Host, h100s, made_up


def matrix(*cards: Card) -> list[list[str]]:
    with made_up(Host(cards=cards)):
        return [list(row) for row in read_gpus({}).links]


@pytest.mark.parametrize(("version", "generation"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 5)])
def test_an_nvlink_has_its_generation_and_the_number_of_links(version: int, generation: int) -> None:
    found = matrix(*(replace(card, nvlink=version) for card in h100s(2)))

    assert found[0][1] == f"nvlink{generation}x18"


def test_through_switches_the_fewer_links_of_two_gpus_count() -> None:
    one, two = h100s(2)

    assert matrix(one, replace(two, nvlinks=two.nvlinks[:12]))[0][1] == "nvlink4x12"


def test_links_that_lead_to_another_gpu_do_not_join_these_two() -> None:
    one, two, three = h100s(3)
    joined = [
        replace(one, nvlinks=(two.uuid,) * 4),
        replace(two, nvlinks=(one.uuid,) * 4),
        replace(three, nvlinks=(), pcie=(4, 8)),
    ]
    found = matrix(*joined)

    assert [row[2] for row in found] == ["pcie4x8 NODE", "pcie4x8 NODE", ""]
    assert kinds(found) == ["nvlink4x4", "pcie4x8"]


def test_what_the_driver_does_not_tell_is_left_out() -> None:
    silent = frozenset({"GetP2PStatus", "GetTopologyCommonAncestor", "GetMaxPcieLinkGeneration", "GetNvLinkState"})

    assert matrix(*(replace(card, lacks=silent) for card in h100s(2))) == [["", "pcie"], ["pcie", ""]]
