"""Whether the processes of a script or a command met: what gave up early, or ran one by one, ends as others do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.logs import tail
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import Record
from pytest_distbench.records.work import Command, Ranks


def check_ranks(plan: LaunchPlan, reports: Mapping[int, RankReport]) -> list[str]:
    """What is to be said of a launch of ranks of ours, where only some of those that run a script met."""
    body = plan.expect(Ranks).body
    if not (body.is_script and body.makes_group):
        return []
    return _check(plan, max(report.group_size for report in reports.values()), who="rank")


def check_command(plan: LaunchPlan, *, gave_numbers: bool) -> list[str]:
    """The same of a command's processes, as far as they are Pythons and on this host.

    What it gave as numbers, with nothing of it going on when it had ended, may be what should have been measured.
    """
    sizes = plan.files.joined()
    if not plan.expect(Command).makes_group or (not sizes and gave_numbers):
        return []  # it may not be Python at all: the numbers show that it has done something
    return _check(plan, max(sizes, default=0), who="process of the command")


_RANK = "rank "


class RankNote(Record, frozen=True, kw_only=True):
    """A line that a rank of a command has left, or what has started it."""

    who: str
    """``rank 1``; of what starts ranks its command line."""
    what: Literal["began", "raised"]
    t: float
    """CLOCK_MONOTONIC seconds."""
    pid: int
    error: str = ""
    """In words: ``raised ValueError: bad batch (train.py:12)``; of what starts ranks how they died."""


def failed_ranks(plan: LaunchPlan) -> str:
    """How ranks of a command failed, in a clause; empty: none did, or they began anew afterwards, and ended well.

    An elastic agent, or a loop in a shell, starts ranks again: of each rank, and of each command line that starts them,
    the process that began last counts.
    """
    if not plan.files.rank_notes.exists():
        return ""
    notes = sorted(
        (msgspec.json.decode(line, type=RankNote) for line in plan.files.rank_notes.read_bytes().splitlines()),
        key=lambda note: note.t,
    )
    last = {note.who: note.pid for note in notes if note.what == "began"}
    failed = [note for note in notes if note.what == "raised" and last.get(note.who) == note.pid]
    by_error: dict[str, list[str]] = {}
    for note in failed:
        if note.who.startswith(_RANK):
            by_error.setdefault(note.error, []).append(note.who.removeprefix(_RANK))
    told = [f"rank{'s' * (len(who) > 1)} {', '.join(sorted(who))} {error}" for error, who in by_error.items()]
    return "; ".join(told or dict.fromkeys(note.error for note in failed))


def _check(plan: LaunchPlan, largest: int, *, who: str) -> list[str]:
    if plan.world_size == 1:
        return []
    if largest < 2:
        last = tail(plan.files.log(0), lines=5)
        shown = f"; the output of rank 0 ends with:\n{last}" if last else "; rank 0 printed nothing"
        raise RecordingError(
            f"no {who} joined a process group of {plan.world_size}: it ended without one"
            + ", or made one of its own alone" * (largest == 1)
            + ". If its processes meet by other means than torch.distributed, say so with makes_group=False"
            + shown
        )
    return [f"the largest process group had {largest} of {plan.world_size} ranks"] * (largest < plan.world_size)
