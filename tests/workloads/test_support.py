"""A backend is asked whether it takes a call; a call that is wrong whatever it sends is not passed over."""

from __future__ import annotations

import unittest
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from support.ranks import make_rank

from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.buckets import bucket_sweep
from pytest_distbench.workloads.calls import Call
from pytest_distbench.workloads.collectives import Buffers, Form
from pytest_distbench.workloads.overlap import overlap
from pytest_distbench.workloads.support import expect_sums, refusal

FORM = Form(ranks=(0,), rank=0)
BUFFERS = Buffers(torch.zeros(1), torch.zeros(1))


def takes() -> Call:
    return Call((BUFFERS,), FORM, lambda: None)


def refuses(reason: str) -> Call:
    def run() -> None:
        raise RuntimeError(reason)

    return Call((BUFFERS,), FORM, run)


def test_what_is_taken_is_no_refusal() -> None:
    assert refusal(make_rank(), takes, lambda: None) == ""


def test_a_pair_is_refused_where_the_usual_one_is_taken() -> None:
    assert refusal(make_rank(), lambda: refuses("Invalid scalar type\nmore"), takes) == "Invalid scalar type"


def test_signs_that_cannot_be_printed_are_replaced() -> None:
    assert refusal(make_rank(), lambda: refuses("no \x02 here"), takes) == "no ? here"


def test_where_the_usual_pair_is_refused_too_the_call_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        refusal(make_rank(), lambda: refuses("shape"), lambda: refuses("shape"))
    with pytest.raises(RuntimeError, match="shape"):
        refusal(make_rank(), lambda: refuses("shape"), lambda: None)


def test_an_operation_that_the_backend_has_not_at_all_says_so() -> None:
    reason = "Backend gloo does not support alltoall"

    assert refusal(make_rank(), lambda: refuses(reason), lambda: refuses(reason)) == reason


def test_a_rank_that_looks_on_goes_by_what_the_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    sums = iter([1.0, 1.0, 7.0, 0.0])  # one refused, one calls, its reason, nobody's call is wrong
    monkeypatch.setattr(rank, "sum_over_ranks", lambda value: next(sums))
    monkeypatch.setattr(rank, "agree", lambda value: 7.0)

    assert refusal(rank, lambda: Call((), None, lambda: None), lambda: None) == "refused in the ranks that call"


def take_only_float32(message: torch.Tensor, **_: object) -> None:
    """An all_reduce as a backend's that has one type."""
    if message.dtype != torch.float32:
        raise RuntimeError("Invalid scalar type")


@pytest.mark.parametrize("body", [bucket_sweep, overlap])
def test_a_body_whose_element_type_the_backend_does_not_sum_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[RankContext], None]
) -> None:
    monkeypatch.setattr(dist, "all_reduce", take_only_float32)
    rank = make_rank()
    rank.params = {"dtype": "int16", "message_bytes": 64, "matrix": 4}

    with pytest.raises(unittest.SkipTest, match="fake does not reduce int16 here: Invalid scalar type"):
        body(rank)
    expect_sums(rank, "float32")
