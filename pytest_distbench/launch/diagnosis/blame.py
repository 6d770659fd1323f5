"""Whom a failure is to blame on: which ranks are victims of others, and which ones the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from pytest_distbench.launch.diagnosis import texts
from pytest_distbench.records.rank import ErrorReport, Phase, RankFate


def has_waited_in_vain(error: ErrorReport) -> bool:
    """Whether it came from waiting for another rank. The same words in a user's own exception are no sign of that."""
    return any(sign.kind == "wait" for sign in _signs(error))


def is_follower(error: ErrorReport) -> bool:
    """Whether it began with another rank that did not come, or was gone; not, where it names a cause of its own."""
    kinds = {sign.kind for sign in _signs(error)}
    return error.began_in_torch and bool(kinds) and "cause" not in kinds


def _signs(error: ErrorReport) -> list[texts.Sign]:
    return [sign for text in error.torch_errors if (sign := texts.read(text))]


def is_hang(fates: Sequence[RankFate]) -> bool:
    """Whether the launch failed because a rank did not go on, or did not come where others waited."""
    return any(f.is_hung for f in fates) or is_deadlock(fates)


def is_deadlock(fates: Sequence[RankFate]) -> bool:
    """Ranks gave up waiting for each other, or lost the connection to one that has left; nobody else is to blame."""
    failed = [f for f in fates if f.outcome == "failed"]
    has_left = any(f.outcome == "passed" for f in fates)
    return all(f.error is not None and f.is_victim for f in failed) and (
        any(map(_in_vain, failed)) or (has_left and bool(failed))
    )


def waits_in_a_circle(failed: Sequence[RankFate]) -> bool:
    """Whether every rank hangs in a collective, and not all in the same: none of them will ever come to the others'."""
    places = {f.collective for f in failed if f.is_hung and f.collective_number and not f.collective_is_over}
    return len(places) > 1 and all(f.is_hung and f.collective in places for f in failed)


def find_missing(hung: Sequence[RankFate]) -> list[RankFate]:
    """Of ranks that hang, those that others wait for.

    In an earlier phase, or behind in the collectives of a group; of those, whoever waits for nobody in turn. Where
    torch records nothing, as of ``send``, ``recv`` and ``monitored_barrier``, those that are in code of their own while
    others are in torch.
    """
    phases: tuple[Phase, ...] = get_args(Phase)
    furthest = max((phases.index(f.phase) for f in hung), default=0)
    behind = [f for f in hung if phases.index(f.phase) < furthest]
    if not behind:
        behind = [f for f in hung if any(_is_ahead(other, f) for other in hung)]
        behind = [f for f in behind if not any(_waits_for(f, other) for other in hung)] or behind
    if not behind and furthest == phases.index("body"):
        behind = [f for f in hung if f.is_elsewhere]
    return behind if len(behind) < len(hung) else []


def _waits_for(fate: RankFate, other: RankFate) -> bool:
    """Whether a rank is in a collective that another one of its group has not entered."""
    return any(
        other.rank in fate.groups.get(name, ()) and number > other.entered.get(name, 0)
        for name, number in fate.unfinished.items()
    )


def _is_ahead(fate: RankFate, other: RankFate) -> bool:
    """Whether a rank waits for another, or has left behind it a collective that the other has not entered."""
    return _waits_for(fate, other) or any(
        other.rank in ranks and name not in fate.unfinished and fate.entered.get(name, 0) > other.entered.get(name, 0)
        for name, ranks in fate.groups.items()
    )


def _in_vain(fate: RankFate) -> bool:
    return fate.error is not None and has_waited_in_vain(fate.error)
