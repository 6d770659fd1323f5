"""Did each generation go on where it should have? Its step, its epoch, and what its optimizers remember."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.records.elastic import ElasticJob

_NAMED = "Wrong epoch on resume"
_TOGETHER = "Epoch and step must be saved and restored together, with the place in the epoch"


def tell_wrong_resume(history: History, job: ElasticJob) -> str:
    """What is wrong with where a generation went on, by its name and with its remedy; empty: nothing is."""
    for before, after in _pairs(history):
        if told := _went_too_far_back(history, job, before, after) or _changed_epoch(history, before, after):
            return f"{_NAMED}: {told}"
    return ""


def optimizers_that_forgot(history: History) -> int:
    """Generations whose optimizers began with less than they remembered before, or with nothing."""
    known = 0
    found = 0
    for generation in history.generations:
        told = [w.remembered for w in history.members(generation).values() if w.remembered is not None]
        found += any(min(known, line.after) > line.before for line in told) and history.resumed_at(generation) > 0
        known = max([known, *(line.after for line in told)])
    return found


def _pairs(history: History) -> Sequence[tuple[list[int], int]]:
    """All generations before one, and that one."""
    every = history.generations
    return [(every[:i], every[i]) for i in range(1, len(every))]


def _went_too_far_back(history: History, job: ElasticJob, before: list[int], after: int) -> str:
    resumed = history.resumed_at(after)
    highest = _highest(history, before)
    first = min(history.resumed_at(generation) for generation in before)
    saved = max((line.step for line in history.saved if line.generation in before), default=None)
    if job.steps is None:
        torn = any(w.loaded is not None and w.loaded.torn for w in history.members(after).values())
        if saved is None or resumed >= saved or torn:
            return ""
        return (
            f"generation {after} went on behind step {resumed}, and the newest checkpoint was of step {saved}. Nobody "
            "but rank.training(...) may set step, epoch or position, and checkpoints must lie where all nodes see them"
        )
    redone = highest - resumed
    due = job.checkpoint_every is None or redone > job.checkpoint_every
    if resumed <= first and due and redone > 0:
        remedy = (
            "If no snapshot was due yet, say checkpoint_every="
            if job.checkpoint_every is None
            else f"One is due every {job.checkpoint_every} steps (checkpoint_every=)"
        )
        return (
            f"the training had come to step {highest}, and after the change it began at step {resumed + 1} "
            "again, as at its very beginning. Does the script load its snapshot, from a path that all nodes see, and "
            f"take step and epoch from it? {remedy}"
        )
    if job.checkpoint_every is not None and redone > job.checkpoint_every:
        return (
            f"the training had come to step {highest}, and after the change it went on at step {resumed + 1}: that is "
            f"{redone} steps back, and a checkpoint is due every {job.checkpoint_every} (checkpoint_every=). Is the "
            "snapshot written as often, and is its own epoch or step restored with it?"
        )
    return ""


def _changed_epoch(history: History, before: list[int], after: int) -> str:
    """A step that is redone belongs to the epoch it belonged to, and one that is new to that of the last, or the next.

    Numbers of a script that counts anew in each epoch are made of its epochs, and say nothing about them.
    """
    was: dict[int, int | None] = {}
    for generation in before:
        for worker in history.members(generation).values():
            was |= {step.step: worker.epoch(step) for step in worker.steps}
    for worker in history.members(after).values():
        if not worker.steps:
            continue
        step = worker.steps[0]
        epoch = worker.epoch(step)
        known = was.get(step.step)
        if epoch is not None and known is not None and epoch != known:
            return f"step {step.step} was of epoch {known}, and after the change it is of epoch {epoch}. {_TOGETHER}"
        previous = was.get(step.step - 1)
        if epoch is not None and previous is not None and not previous <= epoch <= previous + 1:
            return (
                f"step {step.step - 1} was of epoch {previous}, and the next, after the change, is of epoch {epoch}. "
                f"{_TOGETHER}"
            )
    return ""


def _highest(history: History, generations: Sequence[int]) -> int:
    return max(s.step for g in generations for w in history.members(g).values() for s in w.steps)
