"""What goes wrong on a GPU, as a made-up driver counts and reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.nvml import Host, State, h100s, made_up

from pytest_distbench.machine.card_errors import CardErrors
from pytest_distbench.machine.cards import CardWatch
from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.machine.nvml import connect

BEFORE = State(link_errors={"CRC_FLIT_ERROR_COUNT_TOTAL": 5, "REPLAY_ERROR_COUNT_TOTAL": 1}, xids=(43,))
RISEN = {"CRC_FLIT_ERROR_COUNT_TOTAL": 15, "CRC_DATA_ERROR_COUNT_TOTAL": 2, "REPLAY_ERROR_COUNT_TOTAL": 1}


def host(states: Mapping[float, State], *lacks: str) -> Host:
    return Host(cards=[replace(h100s(1)[0], states=states, lacks=frozenset(lacks))])


def errors(after: State, *lacks: str) -> tuple[dict[str, int], list[int]]:
    """What is told of a GPU that was in the state before at the beginning and is in that one at the end."""
    with made_up(host({0.0: BEFORE, 1.0: after}, *lacks)) as nvml, connect() as driver:
        nvml.seconds = lambda: 0.0  # type: ignore[method-assign]
        watched = CardErrors(driver, driver.demand("GetHandleByIndex", 0))
        watched.begin()
        nvml.seconds = lambda: 1.0  # type: ignore[method-assign]
        try:
            return watched.link_errors(), watched.xids()
        finally:
            watched.close()


def test_what_has_risen_and_what_was_reported_meanwhile_is_told() -> None:
    assert errors(State(link_errors=RISEN, xids=(43, 74, 74, 79))) == ({"CRC": 10}, [74, 79])


def test_a_counter_that_the_driver_tells_later_has_not_risen() -> None:
    assert errors(State(link_errors={"RECOVERY_ERROR_COUNT_TOTAL": 3}, xids=(43,))) == ({}, [])


@pytest.mark.parametrize("lacks", ["GetFieldValues", "RegisterEvents"])
def test_what_the_driver_does_not_tell_is_no_error(lacks: str) -> None:
    link_errors, xids = errors(State(link_errors=RISEN, xids=(43, 79)), lacks)

    assert (link_errors == {}, xids == []) == (lacks == "GetFieldValues", lacks == "RegisterEvents")


def test_a_launch_is_told_of_its_own_and_not_of_those_before() -> None:
    with made_up(host({0.0: BEFORE})) as nvml:
        watch = CardWatch(read_gpus({}).visible)
        with watch.during(1) as first:
            nvml.host = host({0.0: State(link_errors=RISEN, xids=(43, 79))})
        with watch.during(1) as second:
            pass
        watch.close()

    assert [(card.link_errors, card.xids) for card in first] == [({"CRC": 10}, [79])]
    assert [(card.link_errors, card.xids) for card in second] == [({}, [])]
