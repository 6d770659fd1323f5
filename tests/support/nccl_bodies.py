"""Bodies that do what NCCL and CUDA do to a rank. Rank 1 is the culprit, but for ``is_ended_by_the_watchdog``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from support import stand_in_cuda as cuda
from support.nccl_texts import watchdog_log

if TYPE_CHECKING:
    from pytest_distbench import RankContext

FOREVER_S = 1000.0
LETS_GO_S = 2.5
"""Longer than the launcher is waited for after a rank's connection has gone."""


def _records(*states: str) -> None:
    """Let NCCL's recorder hold all-reduces in these states."""
    entries = [
        {
            "record_id": number,
            "time_created_ns": time.time_ns(),
            "profiling_name": "nccl:all_reduce",
            "collective_seq_id": number,
            "process_group": ["0", "default_pg"],
            "input_dtypes": ["Float"],
            "input_sizes": [[8]],
            "is_p2p": False,
            "retired": False,
            "state": state,
        }
        for number, state in enumerate(states, 1)
    ]

    cuda.record_nccl(json.dumps({"version": "2.10", "pg_status": {}, "entries": entries}, separators=(",", ":")))


def _item() -> None:
    """``loss.item()``, as the stack shows it: a line of the body's own that waits for the GPU."""
    time.sleep(FOREVER_S)


def hangs(rank: RankContext) -> None:
    dist.all_reduce(torch.ones(8))
    if rank.rank == 1:
        _records("completed")
        time.sleep(FOREVER_S)
    _records("completed", "started", "scheduled")
    cuda.launch(FOREVER_S)
    torch.cuda.synchronize()


def hangs_unrecorded(rank: RankContext) -> None:
    dist.all_reduce(torch.ones(8))
    if rank.rank == 1:
        time.sleep(FOREVER_S)
    _item()


def is_ended_by_the_watchdog(rank: RankContext) -> None:
    """Rank 0 waits on its device for rank 1, until a thread of torch's ends it."""
    dist.all_reduce(torch.ones(8))
    if rank.rank == 1:
        time.sleep(FOREVER_S)
    time.sleep(0.5)
    sys.stderr.write(watchdog_log(rank.params["why"], frames=rank.params.get("frames", 24)))
    sys.stderr.flush()
    os.abort()


def meets_an_error(rank: RankContext) -> None:
    dist.all_reduce(torch.ones(8))
    if rank.rank == 1:
        time.sleep(0.3)
        raise dist.DistBackendError(rank.params["text"])


def ends_slowly(rank: RankContext) -> None:
    """Its connections are closed, as in the exit of a process that holds a GPU, and the end itself takes its time."""
    dist.all_reduce(torch.ones(8))
    if rank.rank == 1:
        Path(rank.params["at"]).write_text(str(os.getpid()))
        code = rank.params["code"]
        end = f"os._exit({code})" if code > 0 else f"os.kill(os.getpid(), {-code})"
        # A process in its exit does not take signals either: the elastic agent sends SIGTERM when rank 0 is gone.
        slow = f"import os, signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({LETS_GO_S}); {end}"
        os.execv(sys.executable, [sys.executable, "-c", slow])
    time.sleep(FOREVER_S)
