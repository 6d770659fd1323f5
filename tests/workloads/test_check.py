"""Results are checked element by element, chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.workloads import check
from pytest_distbench.workloads.check import count_wrong
from pytest_distbench.workloads.collectives import Buffers, Operation
from pytest_distbench.workloads.collectives.inputs import Inputs
from pytest_distbench.workloads.collectives.pattern import Pattern


def send(buffers: Buffers) -> None:
    buffers.received.copy_(buffers.sent)


def send_two_wrong(buffers: Buffers) -> None:
    send(buffers)
    buffers.received[7:9] += 1


def operation(call: object, *, in_place: bool = False) -> Operation:
    def expected(inputs: Inputs) -> Pattern:
        return inputs.of(0)

    return Operation(
        name="echo",
        busbw_factor=lambda n: 1.0,
        source="",
        call=call,  # type: ignore[arg-type]
        expected=expected,
        is_in_place=in_place,
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHUNK_ELEMENTS", 4)


def test_what_is_delivered_is_right_and_the_buffers_are_zero_again() -> None:
    buffers = Buffers(torch.zeros(11), torch.zeros(11))

    assert count_wrong(make_rank(), operation(send), buffers) == (0, "")
    assert buffers.sent.sum() == buffers.received.sum() == 0


def test_wrong_elements_are_counted_over_all_chunks_and_the_first_is_shown() -> None:
    buffers = Buffers(torch.zeros(11), torch.zeros(11))

    assert count_wrong(make_rank(), operation(send_two_wrong), buffers) == (
        2,
        "; on rank 0 element 7 is 8, expected 7",
    )


def test_nothing_delivered_is_wrong_in_every_element() -> None:
    buffers = Buffers(torch.zeros(11), torch.zeros(11))

    assert count_wrong(make_rank(), operation(lambda buffers: None), buffers)[0] == 11


def test_one_buffer_for_both_holds_what_is_sent() -> None:
    memory = torch.zeros(11)

    assert count_wrong(make_rank(), operation(lambda b: None, in_place=True), Buffers(memory, memory)) == (0, "")
