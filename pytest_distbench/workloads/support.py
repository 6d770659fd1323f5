"""Whether a backend takes what a call sends: it is asked, with the call itself."""

from __future__ import annotations

import unittest
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.calls import Call
from pytest_distbench.workloads.collectives import Form

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_REFUSED = "not support"
"""In what torch says of an operation that a backend has not at all."""

_LONGEST = 200


def refusal(rank: RankContext, make: Callable[[], Call], make_usual: Callable[[], Call | None]) -> str:
    """Why the backend refuses a call, in its words; empty where it takes it. A collective call.

    Backends look at the element type and the reduce operation before anything is sent, in every rank, so the group is
    usable afterwards. That it is the pair they refuse, and not a call that is wrong whatever it sends, is found out
    with the same call in float32.

    Args:
        rank: where it runs.
        make: makes the call.
        make_usual: makes the same one of a pair that every backend takes; gives None where that is the call itself.
    """
    call = make()
    error = _try(call)
    reason = "" if error is None else _first_line(error)
    refused = rank.sum_over_ranks(int(bool(reason)))
    if not refused:
        return ""
    rank.note_refusal()
    calling = rank.sum_over_ranks(int(call.form is not None))
    told = zlib.crc32(reason.encode())
    if refused != calling or rank.sum_over_ranks(told) != calling * rank.agree(told):
        raise RecordingError(
            f"the backend takes this call in some ranks and refuses it in {refused:.0f}: {reason or 'taken here'}"
        ) from error
    usual = make_usual()
    is_wrong = call.form is not None and (usual is None or _try(usual) is not None)
    if rank.sum_over_ranks(int(is_wrong and _REFUSED not in reason)) and error is not None:
        raise error
    return reason or "refused in the ranks that call"


def expect_sums(rank: RankContext, dtype: str) -> None:
    """Skip the body in all ranks where the backend does not sum elements of a type. A collective call."""
    form = Form(ranks=tuple(range(rank.world_size)), rank=rank.rank)

    def summing(name: str) -> Call:
        message = torch.zeros(1, dtype=getattr(torch, name), device=rank.device)
        return Call((), form, lambda: dist.all_reduce(message))

    reason = refusal(rank, lambda: summing(dtype), lambda: None if dtype == "float32" else summing("float32"))
    if reason:
        raise unittest.SkipTest(f"{rank.backend} does not reduce {dtype} here: {reason}")


def _try(call: Call) -> Exception | None:
    try:
        call.run()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return error
    return None


def _first_line(error: Exception) -> str:
    """What torch says, as it can be recorded: it has been seen to put characters there that nobody can print."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in line)[:_LONGEST]
