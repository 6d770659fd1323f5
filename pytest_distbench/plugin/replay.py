"""What ``distbench.replay`` is given -> the parameters of the body that replays it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.errors import DistbenchError, show
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.iteration import Collective, Fingerprint, Group, named_ranks
from pytest_distbench.store.baselines import read_file

BODY = str(Path(__file__).resolve().parent.parent / "workloads" / "replay.py") + "::replay"
"""The body."""

_REPLAYED = frozenset({
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    "broadcast", "reduce", "gather", "scatter", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier",
    "send", "recv",
})  # fmt: skip
"""As ``workloads.replay.KNOWN``, which imports torch; a test compares the two."""


def replay_params(
    given: Arguments, source: Run | Fingerprint | str | os.PathLike[str], of: str, *, world_size: int, beside: Path
) -> dict[str, Any]:
    name, chosen = _choose(given, _fingerprints(given, source, beside), given.text("of", of, may_be_empty=True))
    if chosen.missing:
        given.refuse(f"there is no fingerprint {name!r}: {chosen.missing}")
    if not any(chosen.collectives.values()):
        given.refuse(f"the fingerprint {name!r} has no collective, so there is nothing to replay")
    rows = [row for rows in chosen.collectives.values() for row in rows]
    used = {row.group for row in rows}
    groups = list(dict.fromkeys(g for groups in chosen.groups.values() for g in groups if g.name in used))
    _check_groups(given, rows, groups, world_size)
    _check_ranks(given, chosen, groups, world_size)
    if unknown := sorted({row.op for row in rows} - _REPLAYED):
        given.refuse(f"{', '.join(unknown)} cannot be replayed; known are {', '.join(sorted(_REPLAYED))}")
    return {
        "collectives": msgspec.to_builtins(chosen.collectives),
        "groups": msgspec.to_builtins(sorted(groups, key=lambda group: group.name)),
    }


def _fingerprints(given: Arguments, source: object, beside: Path) -> Mapping[str, Fingerprint]:
    if isinstance(source, Fingerprint):
        return {"given": source}
    if isinstance(source, Run):
        return source.launches[0].fingerprints
    if not isinstance(source, str | os.PathLike):
        given.refuse(f"{show(source)}; wanted a run of this test, a Fingerprint, or the path of a baseline file")
    path = Path(beside, source)
    if not os.path.lexists(path):
        given.refuse(
            f"there is no file {show(str(path))}; wanted the path of a baseline file, absolute or relative to the "
            "test's file"
        )
    try:
        return read_file(path).entry.fingerprints
    except DistbenchError as error:
        given.refuse(str(error))


def _choose(given: Arguments, found: Mapping[str, Fingerprint], of: str) -> tuple[str, Fingerprint]:
    if of:
        if of not in found:
            given.refuse(f"of={of!r}; there are {', '.join(found) or 'none'}")
        return of, found[of]
    loops = {name: fingerprint for name, fingerprint in found.items() if not name.startswith("training_start")}
    if len(loops) != 1:
        given.refuse(f"say which fingerprint with of=; there are {', '.join(found) or 'none'}")
    return next(iter(loops.items()))


def _check_ranks(given: Arguments, chosen: Fingerprint, groups: list[Group], world_size: int) -> None:
    named = named_ranks(chosen.collectives)
    alone = len(chosen.collectives) == 1
    if not alone and named != list(range(world_size)):
        given.refuse(
            f"its ranks differ, and it describes {len(named)} of them, so replaying it takes as many ranks; found "
            f"{world_size}"
        )
    if alone:  # every rank does what this one did: what it sends must come
        [rows] = chosen.collectives.values()
        sizes = {"default": world_size, **{group.name: group.size for group in groups}}
        if _passes(rows, "send", sizes) != _passes(rows, "recv", sizes):
            given.refuse(
                "sends and receives of one rank do not match, so those of the other ranks are needed: record the "
                "fingerprint on a backend that transfers data"
            )


def _passes(rows: list[Collective], op: str, sizes: Mapping[str, int]) -> Counter[tuple[str, int, int]]:
    """How often so many bytes go how far in a group, in the direction of the data; a group's last is before its first.

    With two ranks the next is the one before, and both are told as ``+1``.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    for row in rows:
        if row.op == op:
            distance = int((row.way or "to 0").rpartition(" ")[2]) * (1 if op == "send" else -1)
            found[row.group, distance % sizes[row.group], row.message_bytes] += row.count
    return found


def _check_groups(given: Arguments, rows: list[Collective], groups: list[Group], world_size: int) -> None:
    known = {group.name: group for group in groups}
    for name in dict.fromkeys(row.group for row in rows if row.group != "default"):
        if name not in known:
            given.refuse(f"it does not contain the ranks of the group {name!r}: record it again")
        group = known[name]
        span = group.size * max(1, group.stride)
        if (group.size > 1 and not group.stride) or world_size % span:
            given.refuse(
                f"the group {name!r} of {group.size} ranks, {group.stride} apart, does not fit into {world_size} ranks"
            )
    if len(known) < len(groups):
        given.refuse("ranks belong to groups of one name and several sizes, which cannot be replayed")
