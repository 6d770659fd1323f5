"""The calls of a sweep: which buffers and root each has, and how the parts of a message are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_distbench.workloads.calls import CallMaker
from pytest_distbench.workloads.collectives import Buffers, Form, Operation

FORM = Form(ranks=(4, 5, 6), rank=1)


class Work:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait(self) -> None:
        self._log.append("wait")


def operation(log: list[Any]) -> Operation:
    def call(buffers: Buffers, form: Form) -> object:
        log.append((int(buffers.sent[0]), form.root))
        return [Work(log)] if form.is_async else None

    return Operation(name="noted", busbw_factor=lambda n: 1.0, source="", call=call, expected=None)


def slots() -> Callable[[int], Buffers]:
    return lambda k: Buffers(torch.tensor([k]), torch.tensor([k]))


def test_each_call_has_buffers_of_its_own_unless_they_are_to_stay() -> None:
    log: list[Any] = []
    maker = CallMaker(operation(log), FORM)
    for call in (maker.make(slots(), 3), maker.make(slots(), 3, at=0)):
        call.run()

    assert log == [(3, 0), (0, 0)]


def test_the_root_shifts_with_each_call_and_begins_again() -> None:
    log: list[Any] = []
    maker = CallMaker(operation(log), FORM, shifts_root=True)
    for k in range(4):
        maker.make(slots(), k).run()

    assert maker.period == 3
    assert [root for _, root in log] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("together", "log"),
    [("turns", [(2, 0), (3, 0)]), ("async", [(2, 0), (3, 0), "wait", "wait"])],
)
def test_the_parts_of_a_message_are_sent_in_turns_or_at_once(together: Any, log: list[Any]) -> None:
    found: list[Any] = []
    CallMaker(operation(found), FORM, parts=2, together=together).make(slots(), 1).run()

    assert found == log


def test_a_rank_without_a_group_looks_on() -> None:
    call = CallMaker(operation([]), None, shifts_root=True).make(slots(), 2)

    assert (call.buffers, call.form, call.run()) == ((), None, None)


def test_a_root_is_told_as_the_default_group_counts() -> None:
    assert Form(ranks=(4, 5, 6), rank=1, root=2).global_root == 6
    assert FORM.size == 3
