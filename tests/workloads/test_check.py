"""Results are checked element by element, chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.workloads import calls
from pytest_distbench.workloads.calls import Call, count_wrong, count_wrong_sums
from pytest_distbench.workloads.collectives import Buffers, Form, Operation
from pytest_distbench.workloads.protocol import DTYPES, Inputs, RepeatedNumbers


def send(buffers: Buffers, form: Form) -> None:
    buffers.received.copy_(buffers.sent)


def send_two_wrong(buffers: Buffers, form: Form) -> None:
    send(buffers, form)
    buffers.received[7:9] += 1


def send_all_but_the_last(buffers: Buffers, form: Form) -> None:
    send(buffers, form)
    buffers.received[-1] = buffers.received[0]


def send_first_part_only(buffers: Buffers, form: Form) -> None:
    if buffers.sent.storage_offset() == 0:
        send(buffers, form)


def nothing(buffers: Buffers, form: Form) -> None:
    """What a call does that forgets its work."""


def operation(call: object) -> Operation:
    def expected(inputs: Inputs) -> RepeatedNumbers:
        return inputs.of(0)

    return Operation(
        name="echo",
        busbw_factor=lambda n: 1.0,
        source="",
        call=call,  # type: ignore[arg-type]
        expected=expected,
        in_place=(True, False),
        copies=True,
    )


def wrong(call: object, buffers: Buffers, *, parts: int = 1, copies: bool = False) -> tuple[int, str]:
    measured, form = operation(call), Form(ranks=(0,), rank=0)
    length = buffers.sent.numel() // parts
    cut = [slice(k * length, (k + 1) * length) for k in range(parts)]
    each = [Buffers(buffers.sent[part], buffers.received[part]) for part in cut] if parts > 1 else [buffers]

    def run() -> None:
        for one in each:
            measured.call(one, form)

    return count_wrong(make_rank(), measured, Call(each, form, run), copies=copies)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CHUNK_ELEMENTS", 4)


@pytest.mark.parametrize(("call", "count"), [(send, 0), (nothing, 11)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_delivered_is_right_in_every_dtype_and_nothing_is_wrong(dtype: str, call: object, count: int) -> None:
    buffers = Buffers(*(torch.zeros(11).to(getattr(torch, dtype)) for _ in range(2)))
    found, told = wrong(call, buffers)

    assert (found, bool(told)) == (count, count > 0)
    if not count:  # the buffers are zero again
        assert not (buffers.sent if buffers.sent.is_complex() else buffers.sent.float()).abs().sum()


def test_wrong_elements_are_counted_in_every_chunk_up_to_the_last() -> None:
    buffers = Buffers(torch.zeros(11), torch.zeros(11))
    assert wrong(send_two_wrong, buffers) == (2, "; on rank 0 element 7 is 8, expected 7")

    buffers = Buffers(torch.zeros(1 << 12), torch.zeros(1 << 12))
    assert wrong(send_all_but_the_last, buffers)[0] == 1

    buffers = Buffers(torch.zeros(12), torch.zeros(12))
    assert wrong(send, buffers, parts=3) == (0, "")
    assert wrong(send_first_part_only, buffers, parts=3)[0] == 8

    memory = torch.zeros(11)
    assert wrong(nothing, Buffers(memory, memory)) == (0, "")

    buffers = Buffers(torch.zeros(11), torch.zeros(11))
    assert wrong(nothing, buffers, copies=True) == (0, "")
    assert wrong(nothing, buffers)[0] == 11

    message = torch.zeros(130)

    def reduce() -> None:
        message[-1] += 1

    assert count_wrong_sums(make_rank(), message, reduce) == (1, "; on rank 0 element 129 is 130, expected 129")
    assert not message.any()


def test_sums_in_place_by_whatever_calls_are_checked_in_every_dtype() -> None:
    """On one rank the sum is what was sent."""
    for dtype in DTYPES:
        message = torch.zeros(11).to(getattr(torch, dtype))

        assert count_wrong_sums(make_rank(), message, lambda: None) == (0, "")


def test_a_mean_may_be_off_by_two_units_in_the_last_place_and_by_no_more() -> None:
    exact = torch.full((3,), 3.0)
    off = exact * (1 + torch.tensor([0.0, 2.0, 8.0]) * torch.finfo(torch.float32).eps)

    def differ(found: torch.Tensor, *, ulps: int) -> int:
        wanted = RepeatedNumbers.repeat(exact, len(found))
        return calls._compare(make_rank(), operation(send), found, wanted, ulps)[0]

    assert differ(off, ulps=2) == 1
    assert differ(off, ulps=0) == 2
    assert differ(torch.full((1,), torch.nan), ulps=2) == 1
