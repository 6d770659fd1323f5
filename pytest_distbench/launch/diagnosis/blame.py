"""Whom a failure is to blame on: which ranks are victims of others, and which ones the others wait for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

from pytest_distbench.records.rank import ErrorReport, Phase, RankFate

_VICTIM = re.compile(
    r"connection (closed|reset) by peer|broken pipe|remote process exited|DistBackendError|NCCL error"
    r"|connection was (closed|reset)|application timeout",
    re.IGNORECASE,
)
"""Texts of errors that a rank gets because another rank is gone."""

_WAITED_IN_VAIN = re.compile(
    r"store.*(timeout|timed out)|wait timeout after|timed out waiting|timeout waiting|DistStoreError",
    re.IGNORECASE,
)
"""Texts of errors that a rank gets because another rank did not come: that one is the culprit."""


def has_waited_in_vain(error: ErrorReport) -> bool:
    """Whether it came from waiting for another rank. The same words in a user's own exception are no sign of that."""
    return any(map(_WAITED_IN_VAIN.search, error.torch_errors))


def is_follower(error: ErrorReport) -> bool:
    """Whether it began with another rank that did not come, or was gone."""
    return error.began_in_torch and (has_waited_in_vain(error) or any(map(_VICTIM.search, error.torch_errors)))


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

    In an earlier phase, or behind in the collectives of a group. Where torch records nothing, as of ``send``, ``recv``
    and ``monitored_barrier``, those that are in code of their own while others are in torch.
    """
    phases: tuple[Phase, ...] = get_args(Phase)
    furthest = max((phases.index(f.phase) for f in hung), default=0)
    behind = [f for f in hung if phases.index(f.phase) < furthest]
    if not behind:
        behind = [f for f in hung if any(_waits_for(other, f.rank, f.entered) for other in hung)]
    if not behind and furthest == phases.index("body"):
        behind = [f for f in hung if f.is_elsewhere]
    return behind if len(behind) < len(hung) else []


def _waits_for(fate: RankFate, rank: int, entered: Mapping[str, int]) -> bool:
    """Whether a rank has entered a collective of a group that another one of the group, ``rank``, has not."""
    return any(
        rank in ranks and fate.entered.get(name, 0) > entered.get(name, 0) for name, ranks in fate.groups.items()
    )


def _in_vain(fate: RankFate) -> bool:
    return fate.error is not None and has_waited_in_vain(fate.error)
