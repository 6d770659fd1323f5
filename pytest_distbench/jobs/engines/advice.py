"""What an engine's failures mean, and what to turn: an engine's row holds one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pytest_distbench.records.elastic import ChangeResult, ElasticJob

Causes = Mapping[str, float]
"""What a rendezvous waits for, and what to turn -> seconds that this takes at most; 0: it was not in it."""

_KNOBS = {
    "detect": (
        "nobody noticed: survivors learn of a lost node when a collective fails, so give their group a limit, "
        "init_process_group(timeout=...); a newcomer's own start is in it, too"
    ),
    "stop": "workers took so long to go: whoever handles SIGTERM must end soon",
    "process_start": "processes took so long to start: is the host out of cores or memory?",
    "import": "imports of a new process: is Python's environment on a slow disk, or are there fewer cores than nodes?",
    "group_init": "workers waited for each other in init_process_group: did one come much later, or die meanwhile?",
    "build": "what the body does before its checkpoint is loaded: data, model, the first optimizer of a process",
    "checkpoint_load": "loading the checkpoint: its size, and the disk it is on",
    "first_step": "the way from the group, or the checkpoint, to the first step: is something compiled, or loaded?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the failures of an engine mean.

    Attributes:
        split: of a job that has fallen into two, ``{timers}`` being its timers.
        unnoticed: of a node that is gone, and no survivor has begun anew.
        hang_on_join: of nodes that have met, and none has joined a group.
        no_meeting: of nodes that have not even met.
        in_rendezvous: what a long rendezvous may have waited for.
        restarts: of an agent that has no restarts left, ``{limit}`` being how many there were; empty: it has no limit.
        knobs: what makes any other part of a recovery long, and what to turn.
    """

    split: str
    unnoticed: str
    hang_on_join: str
    no_meeting: str
    in_rendezvous: Callable[[ChangeResult, ElasticJob], Causes]
    restarts: str = ""
    knobs: Mapping[str, str] = field(default_factory=lambda: _KNOBS)


_STORE_S = 60
"""Timeout of the store of torch's rendezvous, by default."""


def _of_torchs_rendezvous(change: ChangeResult, job: ElasticJob) -> Causes:
    last_call = job.timers["last_call_s"]
    silent = job.timers["keep_alive_s"] * job.timers["keep_alive_attempts"]
    is_below_most = change.after is not None and change.after < job.most
    return {
        f"last_call_timeout ({last_call:g} s): below MAX nodes every rendezvous waits so long for more": (
            last_call if is_below_most else 0
        ),
        f"keep_alive_interval x keep_alive_max_attempt ({silent:g} s): so long a lost node is waited for": (
            silent if change.kind in ("kill", "leave") else 0
        ),
        f"the store's timeout ({_STORE_S} s): agents waited for what nobody published; is "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set?": _STORE_S,
    }


TORCHRUN = Advice(
    split=(
        "Its signs of life came too late ({timers}), so that the others count it as lost, and torch does not tell it. "
        "Give it longer timers, or a machine with less load"
    ),
    unnoticed=(
        "Scale-down unnoticed: no survivor has begun anew. torchrun restarts workers when they fail, not when a "
        "node falls silent: their collectives need a limit, init_process_group(timeout=...), and no retries"
    ),
    hang_on_join=(
        "With torch 2.13 set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for the agents; and the store must not be on a node "
        "that may go"
    ),
    no_meeting=(
        "No rendezvous: agents wait for each other. Is a node still counted that is gone (keep-alive interval times "
        "attempts), or MIN more than there are?"
    ),
    in_rendezvous=_of_torchs_rendezvous,
    restarts=(
        "--max-restarts={limit}, in {changes} changes of membership. torchrun counts a join, too, where a worker loses "
        "its peers before its agent hears of the newcomer: allow ten restarts for every change there may be"
    ),
    knobs={
        **_KNOBS,
        "stop": (
            f"{_KNOBS['stop']}, and TORCH_ELASTIC_SHUTDOWN_TIMEOUT says how long torchrun waits before it kills them "
            "(30 s)"
        ),
        "process_start": "torchrun took so long to start processes: is the host out of cores or memory?",
    },
)
"""Of nodes that are torchrun, and meet by torch's rendezvous."""

AGENTS = replace(
    TORCHRUN,
    unnoticed=(
        "Scale-down unnoticed: no survivor has begun anew. Agents restart workers when they fail, not when a node "
        "falls silent: their collectives need a limit, init_process_group(timeout=...), and no retries"
    ),
    hang_on_join="Does a worker that was lost still hold the others in init_process_group? Its limit is collective_s",
    restarts="",
    knobs=_KNOBS,
)
"""Of torch's agents in processes of ours, which meet by the same rendezvous, at a store of ours."""
