"""Samples of what a training leaves: weights, replicas that differ, saved files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pytest_distbench.records.iteration import rank_ranges
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.metric import LARGEST_NUMBER, REPLICAS, SAID, SAVED, WEIGHTS, Bound, Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.trained import NOT_A_TENSOR, TensorState, Trained
from pytest_distbench.units import and_more

_WHERE = "of all trainings"
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
_SHARE_OF_MOVE, _SHOWN = 0.25, 3
_UPDATES = "the number of updates"

_Part = TypeVar("_Part")
_Tensors = dict[str, dict[str, TensorState]]


def samples_of(reports: Sequence[RankReport]) -> list[Sample]:
    """Samples of the weights that optimizers trained, and of saved files, if any."""
    trained = {report.rank: report.trained for report in sorted(reports, key=lambda report: report.rank)}
    updates = max((one.updates for one in trained.values()), default=0)
    weights = by_ranks(
        {
            rank: {**one.weights, _UPDATES: TensorState(NOT_A_TENSOR, str(one.updates), one.updates)}
            for rank, one in trained.items()
            if one.weights
        },
        len(trained),
    )
    moves = {name: state.change for named in weights.values() for name, state in named.items()}
    saved = by_ranks({rank: _with_moves(one.saved, moves) for rank, one in trained.items()}, len(trained))
    make = partial(Sample, unit="", better="weights", identity={"updates": updates})
    found = [
        make(name=name, value=_norm(tensors), tensors=tensors)
        for name, tensors in ((WEIGHTS, weights), (SAVED, saved))
        if tensors
    ]
    options = by_ranks({rank: one.options for rank, one in trained.items()}, len(trained))
    return [replace(m, options=options) if m.name == WEIGHTS else m for m in found] + list(_replicas_apart(trained))


def by_ranks(found: Mapping[int, Mapping[str, _Part]], world_size: int) -> dict[str, dict[str, _Part]]:
    """rank -> name -> part, turned into ranks such as ``0-3`` -> name -> part: equal parts of several ranks once."""
    holders: dict[str, dict[_Part, list[int]]] = {}
    for rank, named in found.items():
        for name, state in named.items():
            holders.setdefault(name, {}).setdefault(state, []).append(rank)
    made: dict[str, dict[str, _Part]] = {}
    for name, states in holders.items():
        for state, ranks in states.items():
            made.setdefault(rank_ranges(ranks, world_size), {})[name] = state
    return made


def _with_moves(saved: Mapping[str, TensorState], moves: Mapping[str, float]) -> dict[str, TensorState]:
    """Saved states with the change of the weight of the same name: ``0.weight`` for ``model.pt: net.0.weight``."""

    def of(key: str) -> float:
        names = key.partition(": ")[2].split(".")
        return next((moves[n] for i in range(len(names)) if (n := ".".join(names[i:])) in moves), 0.0)

    return {key: replace(state, change=of(key)) for key, state in saved.items()}


def _norm(tensors: _Tensors) -> float:
    norms = (s.norm for named in tensors.values() for s in named.values() if s.form != NOT_A_TENSOR)
    return min(float(f"{math.hypot(*norms):.6g}"), LARGEST_NUMBER)


def _replicas_apart(trained: Mapping[int, Trained]) -> Iterator[Sample]:
    """The number of tensors that differ between ranks where they should be equal, bounded by 0.

    Only digests taken after updates count: after the last update rank 0 may hold an averaged model for evaluation.
    """
    by_difference: dict[str, list[str]] = {}
    for rank, one in trained.items():
        for name, ranks in one.replicas.items():
            first = min(r for r in ranks if r in trained and name in trained[r].replicas)
            when = _parting(name, trained[first], one) if rank != first else ""
            if when and not _is_rounding(name, trained[first], one):
                by_difference.setdefault(f"rank {rank} holds other values than rank {first}, {when}", []).append(name)
    names = sorted({name for of_rank in by_difference.values() for name in of_rank})
    if names:
        words = [f"{what}: {and_more(of, shown=_SHOWN)}" for what, of in by_difference.items()]
        yield Sample(
            name=REPLICAS,
            unit="",
            better="info",
            value=len(names),
            bounds=[Bound(side="most", value=0, where=_WHERE, is_default=True)],
            facts={SAID: "; ".join(words[:_SHOWN])},
        )


def _parting(name: str, first: Trained, other: Trained) -> str:
    at, other_at = first.names.index(name), other.names.index(name)
    known = [
        (update, own[at] != others[other_at])
        for (update, own), (same, others) in zip(first.checks, other.checks, strict=False)
        if update == same and at < len(own) and other_at < len(others)
    ]
    if not known or not known[-1][1]:
        return ""
    begin = next(i for i in reversed(range(len(known))) if i == 0 or not known[i - 1][1])
    if begin == 0:
        return f"from update {known[0][0]} on"
    return f"between updates {known[begin - 1][0]} and {known[begin][0]}"


def _is_rounding(name: str, first: Trained, other: Trained) -> bool:
    """Whether replicas of a low precision differ by no more than stochastic rounding would."""
    a, b = first.weights.get(name), other.weights.get(name)
    if a is None or b is None or (epsilon := _EPSILON.get(a.form.split(" ")[0])) is None:
        return False
    return a.distance(b) <= min(epsilon * math.sqrt(max(1, first.updates)) * a.norm, _SHARE_OF_MOVE * a.change)
