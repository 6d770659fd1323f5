"""Ctrl-C and SIGTERM in a process that starts ranks, and what becomes of the handlers of others."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pytest_distbench.errors import Terminated
from pytest_distbench.plugin.progress import Interrupts

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Signal handlers as at the start of a program, whatever this process was started with."""
    made = Interrupts()
    before = [
        signal.signal(number, h) for number, h in zip(BOTH, (signal.default_int_handler, signal.SIG_DFL), strict=True)
    ]
    yield made
    made.forget()
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in BOTH]


def test_sigterm_interrupts_as_ctrl_c_does_until_the_run_has_ended(interrupts: Interrupts) -> None:
    before = handlers()
    interrupts.listen()
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    interrupts.hold_on()
    interrupts.forget()

    assert issubclass(Terminated, KeyboardInterrupt)
    assert handlers() == before


def test_a_handler_of_the_user_stays_whether_it_came_first_or_last(interrupts: Interrupts) -> None:
    def own(*arguments: object) -> None: ...

    signal.signal(signal.SIGTERM, own)
    interrupts.listen()
    interrupts.hold_on()
    first = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, own)
    interrupts.forget()

    assert (first, handlers()) == (own, [own, own])


@pytest.mark.parametrize("number", BOTH)
def test_a_first_interrupt_of_the_cleaning_up_prints_a_line_and_a_second_ends_it(
    interrupts: Interrupts, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = handlers()
    interrupts.listen()
    interrupts.hold_on()
    signal.raise_signal(number)

    text = "distbench: cleaning up after the interruption; a second Ctrl-C leaves at once, without cleaning up"
    assert capfd.readouterr().err.strip() == text
    assert handlers() == before


@pytest.mark.parametrize("number", BOTH)
def test_an_interrupt_in_the_last_moment_leaves_nothing_undone(interrupts: Interrupts, number: signal.Signals) -> None:
    interrupts.listen()
    before = handlers()
    with interrupts.ignored():
        signal.raise_signal(number)

    assert handlers() == before
