"""The one line that says why a launch failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pytest_distbench.launch.diagnosis import texts
from pytest_distbench.launch.diagnosis.evidence import raised_at
from pytest_distbench.launch.diagnosis.fates import find_missing, is_deadlock, waits_in_a_circle
from pytest_distbench.records.launch import ErrorReport, Outcome, RankFate
from pytest_distbench.units import format_seconds

_UNRECORDED = re.compile(r'/torch/distributed/.*", line \d+, in (send|recv|monitored_barrier)$', re.MULTILINE)
"""What torch's flight recorder does not know, in a traceback."""
_SIZES = re.compile(r"(\d+) vs\.? (\d+)")
"""Bytes that came, and that were expected, in gloo's words."""
_SPAWNS = (
    "\nnext: torch.multiprocessing.spawn starts its own processes, in every rank. Give a script that starts its "
    "processes itself as a command: [sys.executable, 'train.py']"
)


def merge_outcomes(fates: list[RankFate], *, after_s: float) -> tuple[Outcome, str]:
    """The launch's outcome and one line that tells it.

    All passed: passed. All skipped: skipped. Some skipped and none failed by itself: they disagree.
    """
    skipped = [f for f in fates if f.outcome == "skipped"]
    if len(skipped) == len(fates):
        return "skipped", skipped[0].error.message if skipped[0].error else ""
    failed = [f for f in fates if f.outcome == "failed"]
    if skipped and all(f.is_victim for f in failed):
        who = ", ".join(str(f.rank) for f in sorted(skipped, key=lambda f: f.rank))
        return "failed", f"ranks disagree: rank {who} skipped, the others did not"
    if not failed:
        return "passed", ""
    if any(f.is_hung for f in failed):
        return "failed", _tell_hang(failed, after_s)
    if is_deadlock(fates):
        return "failed", _tell_deadlock(failed, [f for f in fates if f.outcome == "passed"])
    first = failed[0]
    if mismatch := _tell_mismatch(first, fates):
        return "failed", mismatch
    said = _tell_error(first.error) if first.error is not None else ""
    where = f" at {first.waits_at}" if first.waits_at and not said else ""
    reason = f"rank {first.rank} {first.how}{where}{said and f': {said}'}"
    return "failed", reason + _tell_doubt([f for f in failed if f.doubt_s])


def _tell_mismatch(first: RankFate, fates: Sequence[RankFate]) -> str:
    """What each rank was in where the collectives of two do not match; empty: that is not why it failed."""
    sign = texts.read(first.error.message) if first.error is not None and first.error.began_in_torch else None
    if sign is None or sign.meaning != texts.MISMATCH or first.error is None:
        return ""
    sizes = _SIZES.search(first.error.message)
    got = f"got {sizes[1]} B for {sizes[2]} B" if sizes else "received more than it had room for"
    others = sorted((f for f in fates if f is not first), key=lambda f: f.rank)
    was = [f"rank {f.rank} was{where}" for f in others if (where := _called_at(f))]
    told = "; ".join([f"rank {first.rank} {got}{_called_at(first)}", *was[:3]])
    return f"{sign.meaning}: {told}\nnext: {sign.advice}"


def _called_at(fate: RankFate) -> str:
    place = fate.waits_at or raised_at(fate.error.traceback if fate.error is not None else fate.log_tail)
    line, _, called = place.partition(", in ")
    return f"{called and f' in {called}'}{line and f' at {line}'}"


def _tell_doubt(beside: Sequence[RankFate]) -> str:
    """Who may have failed before the rank that is told first, in a line of its own; empty: nobody."""
    if not beside:
        return ""
    within = format_seconds(max(f.doubt_s for f in beside))
    return f"\n{_numbers(beside)} failed within {within} of it: the clocks of their hosts do not show who was first"


def _tell_error(error: ErrorReport) -> str:
    """An error's first line; of one of torch's that is known, what it means, and the next step in a line of its own."""
    for text in error.torch_errors if error.began_in_torch else ():
        sign = texts.read(text)
        if sign is not None and sign.meaning:
            return (
                f"{sign.meaning}: {texts.last_error(text) or _first_line(text.partition(': ')[2])}\nnext: {sign.advice}"
            )
    return _first_line(error.message)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def _tell_hang(failed: Sequence[RankFate], after_s: float) -> str:
    hung = [f for f in failed if f.is_hung]
    missing = find_missing(hung)
    if not missing and waits_in_a_circle(failed):
        return f"deadlock: {_waiting(failed, 'waits')}; ended after {after_s:.1f} s"
    shown = missing or hung
    phases = list(dict.fromkeys(f.phase for f in shown))
    told = "; ".join(_where(f) for f in sorted(shown, key=lambda f: f.rank)[:4])
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    waiting = [f for f in failed if f not in shown]  # some have given up by now: their collective timed out
    what = f"; {_numbers(waiting)} wait{'s' * (len(waiting) == 1)} in {_place(waiting[0])}" if waiting else ""
    advice = _SPAWNS if any(f.waits_at.endswith(", in spawn") for f in hung) else ""
    return f"hung in {'/'.join(phases)}, ended after {after_s:.1f} s: {told}{more}{what}{advice}"


def _tell_deadlock(waiting: Sequence[RankFate], passed: Sequence[RankFate]) -> str:
    """Every rank that failed gave up waiting: for ranks that have left, or for each other."""
    places = _waiting(waiting, "waited")
    if not passed:
        return f"deadlock: {places}"
    if len(waiting) == 1 < len(passed):
        return f"rank {waiting[0].rank} alone waited in {_place(waiting[0])}: {_numbers(passed)} ended without it"
    return f"{_numbers(passed)} ended without the collective that others waited for: {places}"


def _waiting(fates: Sequence[RankFate], verb: Literal["waits", "waited"]) -> str:
    """Who waits where; one that is alone there, while all others are together elsewhere, is told first."""
    places: dict[str, list[RankFate]] = {}
    for fate in sorted(fates, key=lambda f: f.rank):
        places.setdefault(_place(fate), []).append(fate)
    found = sorted(places.items(), key=lambda place: len(place[1]))  # of equally many those of lower ranks first
    odd = len(found) == 2 and len(found[0][1]) == 1 < len(found[1][1])
    told: list[str] = []
    for place, those in found[:4]:
        wait = verb if len(those) == 1 else verb.replace("waits", "wait")
        told.append(f"{_numbers(those)}{' alone' if odd and not told else ''} {wait} in {place}")
    return "; ".join(told)


def _place(fate: RankFate) -> str:
    if fate.phase != "body":
        return fate.phase
    if fate.error is not None:  # its collective is over in any case: given up
        unrecorded = _UNRECORDED.findall(fate.error.traceback)
        is_over = bool(unrecorded)
        called = unrecorded[-1] if unrecorded else ""
    else:
        is_over = fate.collective_is_over
        called = fate.waits_at.rpartition(", in ")[2]
    if fate.collective_number and not is_over:
        return f"{fate.collective}, number {fate.collective_number}"
    return called or fate.phase


def _where(fate: RankFate) -> str:
    place = f"at {fate.waits_at}" if fate.waits_at else f"in phase {fate.phase}"
    return f"rank {fate.rank} {place}"


def _numbers(fates: Sequence[RankFate]) -> str:
    numbers = sorted(f.rank for f in fates)
    return f"rank{'s' * (len(numbers) > 1)} " + ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
