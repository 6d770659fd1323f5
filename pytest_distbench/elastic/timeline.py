"""The events of elastic jobs and pools: what there is, and the facts of each.

A job's are of its controller and of its workers: of a slot and, from the moment a worker has joined its group, of a
generation. A pool's, which say who has which slot and when servers are ready, are of its controller and of the servers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pytest_distbench.records.event import Event
from pytest_distbench.records.launch import ErrorReport

HeldAt = Literal["save", "load", "begin", "step"]
"""When a worker was looked at: at a checkpoint; behind the load of one; before its first batch; before its optimizer's
first step."""

STEPS = "that steps"
"""Name of the first optimizer that stepped; of the second: ``that steps (2)``."""

RANDOM_PART = "random"
"""The part that keeps the random state is handed over under this name."""

OUTSIDE = "outside: "
"""What the name of an object begins with that a body has and did not hand over."""

_NOTE = {"pid": ..., "rank": ..., "world_size": ..., "restarts": ..., "address": ...}

EVENTS: dict[str, dict[str, Any]] = {
    # Nodes are started. The controller changes the membership now; expected are slots that should train from then on.
    "began": {"slots": ...},
    "changed": {"index": ..., "kind": ..., "slots": ..., "expected": ..., "overlaps": False},
    # All slots that should train have taken steps in one generation; of the change that is over, or of the start (-1).
    "stable": {"index": ..., "generation": ..., "world_size": ...},
    # An agent has completed a rendezvous, or has ended. A worker's process is gone, as the controller has seen.
    "rendezvous": {"seconds": ...},
    "agent_ended": {"code": ...},
    "worker_ended": {"pid": ...},
    # A worker runs and has imported what it needs; its process was made at process_t, its agent has used restarts.
    "started": {"pid": ..., "process_t": ..., "restarts": ...},
    # It is in its group. A script asked for it at called_t; until then it imports, and does what it does before.
    "joined": {"pid": ..., "generation": ..., "rank": ..., "world_size": ..., "called_t": None},
    # It has what the newest good checkpoint held, and goes on from that step, 0 where there is none. Torn are the names
    # of newer checkpoints that were passed over, because they are not whole.
    "loaded": {"generation": ..., "began_t": ..., "step": ..., "torn": []},
    # A body asks for batches: what the training is to have trained on when it is over, and the epoch that was under way
    # then. The body ends on purpose with them (is_end): it need not be what was asked for before.
    "wanted": {"generation": ..., "samples": ..., "epochs": ..., "epoch": 0, "is_end": False},
    # It was given samples for a step. Written before the step: what it trains on is known, however it ends. Where it
    # says itself what it has trained on in the step, it drew that, and it counts in place of the batch.
    "batch": {"generation": ..., "step": ..., "epoch": ..., "samples": ...},
    "drew": {"generation": ..., "step": ..., "samples": ...},
    # What its models were given in one of the first steps of a generation: rows by model, over all its calls, are
    # lengths of the first tensor; of_samples, of models whose first call had a row for each sample of the batch, are
    # digests of them, in the batch's order.
    "fed": {"generation": ..., "step": ..., "digest": ..., "rows": {}, "of_samples": {}},
    # Samples are of all ranks, None where nobody knows, as of a script. The epoch is there where no batch tells of it.
    # Its number is laid: the next one, and how many steps lie between them nobody knows, as a script began an epoch.
    # Loss, accuracy and top5 are of this rank. Updates are steps that optimizers of torch took in it, None: nobody has
    # looked. is_given_up: the gradient of the batch before was given up, and no optimizer had stepped with it.
    "stepped": {
        "generation": ..., "step": ..., "world_size": ..., "samples": None, "epoch": None, "is_laid": False,
        "loss": None, "accuracy": None, "top5": None, "lr": None, "updates": None, "is_given_up": False,
    },
    # What its optimizers remember at its first step of a generation: parameters with a state of theirs.
    "remembered": {"generation": ..., "before": ..., "after": ...},
    # What it held of the training's state (at: HeldAt): digests of it, by the name of the part that it belongs to. At a
    # checkpoint all of it; at the other times what nothing may have changed since the checkpoint. The first optimizer
    # that stepped, and its parameters, are STEPS too, whether or not the body handed it over.
    "held": {
        "generation": ..., "rank": ..., "at": ..., "step": ..., "epoch": ..., "position": ...,
        "parameters": {}, "buffers": {},
        "moved": {},  # of each model, at a checkpoint: tensors that are others than when they were looked at before
        "fields": {},  # attributes, by name, of parts that are neither models nor optimizers, and states OUTSIDE
        "options": {},  # of optimizers, one group after the other: what they are set to, but for the rate
        "built": {},  # buffers that no checkpoint keeps, as they are not persistent
        "moments": {},  # of each optimizer, by the names of its slots: exp_avg
        "steps": {},  # that each optimizer has counted, in words
        "rates": {},  # of each optimizer, by group
        "states": {},  # of what is neither a model nor an optimizer; before the first batch those of fresh alone
        "fresh": {},  # behind a load: of those right before it; of the part RANDOM_PART torch's stream
        "per_rank": [],  # those that each rank has of its own
        "random": {},  # streams of this process; behind a load those that it has set
    },
    # What takes part in its first step of a generation, and its body did not hand over; with the call that does so.
    "left_out": {"generation": ..., "parts": ...},
    "saved": {"generation": ..., "step": ..., "seconds": ...},
    # An exception. Without a generation it had not joined a group yet, and torchrun tries again.
    "raised": {"pid": ..., "generation": ..., "error": ...},
    # What a body wants to be shown. A body has returned, and its report is written.
    "progress": {"text": ...},
    "finished": {"generation": ...},
    # Of a script a worker's Python tells that it runs, has imported torch.distributed, asks for a group, has joined it.
    # The address is where the workers of its generation meet: of each another one. A node prints a line.
    "process": _NOTE,
    "torch": _NOTE,
    "call": _NOTE,
    "group": _NOTE,
    "printed": {"text": ...},
    # Of a pool. Its clock begins with the first step of the first job. A slot is somebody's, is asked for, is free
    # again. The serving should have so many slots. A server has loaded what it needs, or that has raised.
    "clock_began": {},
    "submitted": {"job": ...},
    "ended": {"job": ...},
    "granted": {"owner": ...},
    "asked": {"owner": ...},
    "freed": {"owner": ...},
    "demanded": {"slots": ...},
    "server_ready": {},
    "server_failed": {"error": ...},
}  # fmt: skip
"""By what happens: its facts, and what they are where nobody says; ``...``: somebody has to."""


def event(what: str, *, t: float, slot: int = -1, **facts: Any) -> Event:
    """One of :data:`EVENTS`."""
    row = EVENTS[what]
    lacking = {name for name, usual in row.items() if usual is ... and name not in facts}
    if lacking or not facts.keys() <= row.keys():
        raise TypeError(f"{what}: wanted {', '.join(row)}, found {', '.join(facts) or 'nothing'}")
    return Event(t=t, what=what, slot=slot, facts=msgspec.to_builtins({**row, **facts}))


def error_of(raised: Event) -> ErrorReport:
    return msgspec.convert(raised.error, ErrorReport)
