"""How GPUs are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.nvml import HOSTS, Card, Host, h100s, made_up

from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.machine.links import kinds, peak_bytes_per_s


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


def peak(cards: Sequence[Card], ranks: int) -> float | None:
    """GB/s that each of the first so many can send."""
    with made_up(Host(cards=cards)):
        found = read_gpus({})
    known = peak_bytes_per_s(found.visible[:ranks], found.links)
    return None if known is None else known / 1e9


def meshed(count: int, each: int) -> list[Card]:
    """GPUs of NVLink 3 that lead to each other directly, without switches."""
    uuids = [card.uuid for card in h100s(count)]
    return [
        replace(card, nvlink=5, nvlinks=tuple(u for u in uuids if u != card.uuid for _ in range(each)))
        for card in h100s(count)
    ]


@pytest.mark.parametrize(
    ("cards", "ranks", "gb_per_s"),
    [
        (h100s(8), 8, 450.0),
        (h100s(8), 2, 450.0),
        (h100s(8), 1, None),
        ([replace(card, nvlinks=card.nvlinks[:8]) for card in h100s(4)], 3, 200.0),  # as H800: fewer links
        ([replace(card, nvlink=7) for card in h100s(2)], 2, 900.0),
        ([replace(card, nvlink_mbps=26562) for card in h100s(2)], 2, 450.0),  # the wire, of which 25 GB/s are data
        (meshed(4, 4), 4, 300.0),
        (meshed(4, 4), 2, 100.0),  # the links to the others are of no use
        ([replace(card, nvlink_mbps=14062) for card in HOSTS["2xRTX 3090, bridged"].cards], 2, 56.248),
        (HOSTS["2xRTX 3090"].cards, 2, 15.752),
        (HOSTS["4xL40S"].cards, 4, 31.504),
        ([*h100s(2), replace(h100s(3)[2], nvlinks=())], 3, None),  # some by NVLink, some by PCIe
        ([replace(card, nvlink=0) for card in h100s(2)], 2, None),
        ([replace(card, nvlinks=(), lacks=frozenset({"GetMaxPcieLinkGeneration"})) for card in h100s(2)], 2, None),
    ],
)
def test_the_peak_of_the_links_is_what_a_gpu_can_send_to_the_others(
    cards: Sequence[Card], ranks: int, gb_per_s: float | None
) -> None:
    assert peak(cards, ranks) == (None if gb_per_s is None else pytest.approx(gb_per_s))
