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
    # In the record of a launch: a job, and when it was submitted to its pool, took its first step there, and ended. Its
    # start lasts from that of the agents to the end of the first step, its training to that of the last one, its end
    # until all workers had finished. What follows is of a job: of its name, where a pool has several.
    "job": {
        "job": ..., "schedule": ..., "name": "", "start_s": None, "training_s": None, "end_s": None,
        "submitted_s": None, "started_s": None, "ended_s": None,
    },
    # A change of membership, between so many workers that stepped before it and after, None: it never was stable again.
    # Another one came before it was over: its cost cannot be told from that one's (overlapped).
    "change": {
        "of": "", "index": ..., "kind": ..., "slots": ..., "before": ..., "after": None, "overlapped": False,
        "stall_s": None,  # from the last step before it was interrupted to the first one after; the longest wait
        "recovery_s": None,  # from the change itself to that step; of a join it holds the newcomer's start
        "parts": {},  # seconds of the recovery in each of PARTS, as far as seen, on that survivor
        "steps_redone": 0, "redone_s": 0.0,  # median steps of the world size before
        "rounds": 0,  # generations it took; more than one: the job flapped
        "restarts_used": 0,  # of torchrun's --max-restarts, by the survivor that used most
        "joiner_ready_s": None,  # from the change to the newcomer's first step
        "slot_free_s": None,  # of a leave: until the agents of its nodes have ended, and their places are free
        "before_it": None, "after_it": None,  # the step before it and behind it; None: nobody began anew
    },
    # An epoch, as its last pass through each step left it: from the end of the one before, stalls and redone steps
    # included. Nodes are world sizes in it, changes the indices of those that happened in it. Loss, accuracy and top5
    # are means over its samples, as far as told; the learning rate is that of its last step.
    "epoch": {
        "of": "", "epoch": ..., "seconds": ..., "nodes": ..., "loss": None, "accuracy": None, "top5": None, "lr": None,
        "changes": [], "stall_s": 0.0, "steps_redone": 0,
    },
    # A worker, when it had joined; what is None was not seen, or it did not come so far.
    "worker": {
        "of": "", "generation": ..., "rank": ..., "world_size": ..., "process_s": None, "imported_s": None,
        "loaded_s": None, "resumed_at": None, "first_step_s": None, "last_step_s": None, "steps": 0,
    },
    # From a step on the learning rate is another one, or the nodes are more or less.
    "rate": {"of": "", "step": ..., "epoch": None, "nodes": ..., "lr": ...},
    # A pool: from the first submission to the end of the last job; the longest time between two steps in which no job
    # trained; shares of the slots' seconds that somebody had them, and that went into steps that counted and servers.
    "pool": {"sharing": ..., "makespan_s": ..., "idle_gap_s": ..., "allocated": ..., "productive": ...},
    # A slot, for as long as somebody had it; asked: when its owner was to give it back; ready: of a server.
    "hold": {"owner": ..., "end_s": ..., "asked_s": None, "ready_s": None},
    # A demand for more slots than the serving had, and how long until they were free, and the last server was ready.
    "preemption": {"slots": ..., "free_s": None, "ready_s": None},
    # A stretch of time in which the slots and the demand were the same, of a pool with a serving.
    "stretch": {"end_s": ..., "wanted": ..., "serving": ..., "training": ...},
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
