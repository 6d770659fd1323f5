"""What NCCL's watchdog wrote into a rank's log before it ended the rank.

NCCL does not raise where a rank waits. A thread of torch, the watchdog, finds that a collective is late or that its
communicator has failed, writes lines to stderr, waits for four times 15 s (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC), and
aborts the process: SIGABRT, with dozens of C++ frames after the line that tells why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench.launch.diagnosis import texts
from pytest_distbench.launch.logs import find_line

_SAID = re.compile(
    rb"(Watchdog caught collective operation timeout|(Process group|NCCL) watchdog thread terminated with exception"
    rb"|watchdog got stuck)"
)
_LATE = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r".*"
)
_FRAMES = re.compile(r"^(?:Exception raised from|frame #|terminate called|\[rank\d+\]:\[)", re.MULTILINE)
_FOLLOWING = 6
"""Lines below the watchdog's in which torch says what an error of NCCL's means, and NCCL what it warned of last."""
_OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce_coalesced", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather_into_tensor", "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all_single",
}  # fmt: skip
"""torch's names for kinds of work; those not here are the functions' in capitals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Why a rank aborted, or was about to.

    In the watchdog's words, and below them what torch says of an error of NCCL's; or in those of an exception of C++
    that nobody caught. ``error`` is the exception's class. It may have been late in a collective, ``all_reduce``, whose
    number is that in its group; empty: it was not late.
    """

    text: str
    kind: texts.Kind
    error: str = "DistBackendError"
    op: str = ""
    number: int | None = None


def read_abort(log: Path) -> Abort | None:
    """What the watchdog wrote first into a rank's log, however much follows it; None: nothing."""
    text = _FRAMES.split(find_line(log, _SAID, following=_FOLLOWING), maxsplit=1)[0].rstrip()
    if late := _LATE.search(text):
        number, op = late.groups()
        return Abort(text=late[0], kind="wait", op=_OPS.get(op, op.lower()), number=int(number))
    if not text:
        return None
    text = text.partition("with exception: ")[2] or text
    sign = texts.read(text)
    return Abort(text=text, kind=sign.kind if sign else "cause")
