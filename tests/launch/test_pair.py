"""Two launches in turns: one runs at a time, each once a round, and nobody waits for a group that has ended."""

from __future__ import annotations

from pytest_distbench.launch.pair import Turnstile


class Group:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def give_turn(self) -> None:
        self.log.append(self.name)


def groups(log: list[str]) -> tuple[Turnstile, Group, Group]:
    a, b = Group("a", log), Group("b", log)
    return Turnstile([a, b], lambda order: order.reverse()), a, b


def test_nobody_runs_before_all_have_started() -> None:
    log: list[str] = []
    turnstile, a, _ = groups(log)
    turnstile.ask(a)

    assert log == []


def test_each_has_one_turn_a_round_in_the_order_drawn() -> None:
    log: list[str] = []
    turnstile, a, b = groups(log)
    turnstile.ask(a)
    turnstile.ask(b)
    assert log == ["b"]
    turnstile.ask(b)
    assert log == ["b", "a"]
    turnstile.ask(a)
    assert log == ["b", "a", "b"]


def test_while_one_runs_the_other_waits() -> None:
    log: list[str] = []
    turnstile, a, b = groups(log)
    turnstile.ask(b)
    turnstile.ask(a)

    assert log == ["b"]


def test_a_group_that_ends_in_its_turn_frees_the_other() -> None:
    log: list[str] = []
    turnstile, a, b = groups(log)
    turnstile.ask(a)
    turnstile.ask(b)
    turnstile.leave(b)
    turnstile.ask(a)

    assert log == ["b", "a", "a"]


def test_a_group_that_ends_before_it_ever_asked_frees_the_other() -> None:
    log: list[str] = []
    turnstile, a, b = groups(log)
    turnstile.ask(a)
    turnstile.leave(b)

    assert log == ["a"]


def test_a_group_that_ends_while_it_waits_is_not_given_a_turn() -> None:
    log: list[str] = []
    turnstile, a, b = groups(log)
    turnstile.ask(a)
    turnstile.leave(a)
    turnstile.ask(b)

    assert log == ["b"]
