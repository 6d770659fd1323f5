"""Comparison of places: which lines of the code take the time, or hold the memory, that a regression added.

Each side ran under a recorder, the baseline twice: its two launches differ by noise. A place that calls an operator
more often is named without regard to noise. A place that is slower with equal calls has to exceed the noise, beyond
what made every place slower; on a changed line, the noise of that line alone.
"""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import fmean, median_low
from typing import NamedTuple

from pytest_distbench.judging.stats import student_t_quantile
from pytest_distbench.records.places import (
    BACKWARD,
    WAITING,
    CasePlaces,
    LoopPlaces,
    Place,
    PlaceRow,
    RankPlaces,
    Spot,
)
from pytest_distbench.records.record import replace
from pytest_distbench.units import counted, format_bytes, format_percent, format_seconds

_MOST_ROWS = 5
_LEAST_SHARE = 0.1  # of the added time that a place needs to be named
_LEAST_COUNTED = 0.05  # the same where calls differ
_LEAST_CHANGED = 0.01  # the same on a changed line
_NOISES = 2.0  # a place by time alone exceeds so many times what its two baseline launches differ by
_DEVIATIONS = 4.0  # and so many standard deviations of what all places scatter by: the largest of many is not one
_CONFIDENCE = 0.999  # or this quantile of Student's t: few places estimate their standard deviation badly
_TELLING = 0.02  # share of an iteration from which a place says how much slower all are
_SLOWER = 1.03  # from which "every place" is said
_ELSEWHERE_LESS = 1.05  # from which lines add more than all of the added time, because others take less

_At = tuple[str, int]  # a file and a line

Side = Sequence[RankPlaces]  # by rank


@dataclass
class _Lines:
    """Position of each line of the baseline in the candidate: a line at another position is no change.

    Attributes:
        mapped: positions of lines that are elsewhere or were replaced; lines that are gone have a number below 0.
        changed: lines of the candidate that are new or changed.
    """

    mapped: dict[_At, _At] = field(default_factory=dict)
    changed: set[_At] = field(default_factory=set)

    def of(self, file: str, line: int) -> _At:
        return self.mapped.get((file, line), (file, line))


def map_lines(then: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> _Lines:
    """Map lines of the baseline, by file, to the candidate; lines that stand in another file now are followed."""
    lines = _Lines()
    gone: list[tuple[_At, str]] = []
    for file in {**then, **now}:
        old, new = then.get(file, ()), now.get(file, ())
        for kind, a, b, c, d in _opcodes(old, new):
            block = [line for line in range(c, d) if new[line].strip()]
            lines.changed |= {(file, line + 1) for line in block if kind != "equal"}
            for line in range(a, b):
                if kind == "equal":
                    lines.mapped[file, line + 1] = (file, c + line - a + 1)
                elif block:
                    lines.mapped[file, line + 1] = (file, _most_similar(old[line], new, block) + 1)
                else:
                    gone.append(((file, line + 1), old[line].strip()))
    taken = {at for before, at in lines.mapped.items() if before[0] in now}
    free = defaultdict(list)
    for file, line in sorted(lines.changed - taken):
        free[now[file][line - 1].strip()].append((file, line))
    for before, text in gone:
        lines.mapped[before] = (before[0], -before[1])
        if text and (found := free.get(text)):
            lines.mapped[before] = found.pop(0)
            lines.changed.discard(lines.mapped[before])
    return lines


def _most_similar(text: str, lines: Sequence[str], among: Sequence[int]) -> int:
    matcher = difflib.SequenceMatcher(None, "", text.strip(), autojunk=False)

    def ratio(line: int) -> float:
        matcher.set_seq1(lines[line].strip())
        return matcher.quick_ratio()

    return max(among, key=ratio)


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the differences of two files; equal ends are not compared line by line, which takes long."""
    least = min(len(old), len(new))
    head = next((i for i in range(least) if old[i] != new[i]), least)
    tail = next((i for i in range(least - head) if old[-1 - i] != new[-1 - i]), least - head)
    a, b = len(old) - tail, len(new) - tail
    yield "equal", 0, head, 0, head
    for kind, *at in difflib.SequenceMatcher(None, old[head:a], new[head:b], autojunk=False).get_opcodes():
        yield kind, *(head + number for number in at)  # type: ignore[misc] # four of them
    yield "equal", a, len(old), b, len(new)


@dataclass
class _Cell:
    """Calls and seconds, or tensors and bytes, of a rank at a place: in two launches of the baseline and one since."""

    calls: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    amounts: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    explained_s: float = 0.0  # it waited so much longer because another rank came later

    @property
    def added_s(self) -> float:
        return self.amounts[2] - fmean(self.amounts[:2]) - self.explained_s

    @property
    def is_counted(self) -> bool:
        first, second, now = self.calls
        return now - max(first, second) > max(1e-3, abs(first - second))


_Table = dict[_At, dict[str, _Cell]]  # of one rank, by place and what is done there


def compare_places(
    now: Side, then: Side, again: Side | None, metric: str, *, added_s: float | None = None
) -> CasePlaces:
    """Find the places that explain why the candidate is slower.

    Args:
        now: launch of the candidate, by rank.
        then: first launch of the baseline, by rank.
        again: second launch of the baseline. With None no noise is known: calls and new lines alone name a place.
        metric: metric that regressed.
        added_s: regression in seconds that A/B measured, or None to take the recorded one.
    """
    has_noise, again = again is not None, again or then
    loop = _common_loop([*now, *then, *again], metric)
    if not loop:
        return CasePlaces(why_not="no loop and no training step that both sides have was recorded")
    sides = [[_loop(rank, loop) for rank in side] for side in (then, again, now)]
    lines = map_lines(then[0].sources, now[0].sources)
    tables = [_table([launch.spots for launch in ranks], lines) for ranks in zip(*sides, strict=True)]
    whole = [max(rank.iteration_s for rank in side) for side in sides]
    recorded_s, noise_s = whole[2] - fmean(whole[:2]), abs(whole[0] - whole[1])
    shows = recorded_s > noise_s if has_noise else None  # whether it is slower here too
    added_s = added_s if added_s is not None and added_s > 0 and loop == metric else recorded_s
    overhead = fmean(rank.wall_s / rank.iteration_s for side in sides for rank in side)
    _explain_waits(tables)
    slower = _all_slower(tables, whole[0])
    rows, all_s = _of_all(_rows(tables, whole[0], added_s, slower, lines.changed, shows=shows), added_s)
    shown = [_named(row, [rank.spots for rank in sides[2]], lines) for row in rows[:_MOST_ROWS]]
    added = f"the added {format_seconds(added_s)}"
    if rows and (more := all_s / max(added_s, recorded_s)) > _ELSEWHERE_LESS:  # a recorder makes operators take longer
        added = f"the {format_seconds(more * added_s)} that lines add ({format_seconds(added_s)} in all)"
    sentence = _sentence(shown, rows[_MOST_ROWS:], added) if rows else _without_rows(slower if shows else 1.0)
    return CasePlaces(metric=loop, rows=shown, sentence=sentence, overhead=overhead)


def compare_peaks(now: Side, then: Side, metric: str, *, added_bytes: float) -> CasePlaces:
    """Find the places whose tensors hold more memory at the peak of each side, the one that holds the most more first.

    Args:
        now, then: a launch of each side, by rank. Nothing is said of noise, which tensors have none of.
        metric: peak that regressed.
        added_bytes: of the rank that needs most, as judged: the rest is not held by tensors.
    """
    sides = [[rank.peaks.get(metric, []) for rank in side] for side in (then, then, now)]
    lines = map_lines(then[0].sources, now[0].sources)
    tables = [_table(ranks, lines) for ranks in zip(*sides, strict=True)]
    rows, _ = _of_all(_rows(tables, added_bytes, added_bytes, 1.0, lines.changed, shows=True), added_bytes)
    rows = sorted(rows, key=lambda row: -row.share)
    rows = [_named(row, sides[2], lines) for row in rows[:_MOST_ROWS]]
    rest = added_bytes - max(sum(c.added_s for cells in table.values() for c in cells.values()) for table in tables)
    by_tensors = _of_row(rows[0], f"the added {format_bytes(added_bytes)}", "tensors") if rows else "no line holds more"
    others = f"; not by tensors: {format_bytes(round(rest))}" if rest > _LEAST_COUNTED * added_bytes else ""
    return CasePlaces(metric=metric, unit="B", rows=rows, sentence=f"{by_tensors}{others}")


def _common_loop(ranks: Sequence[RankPlaces], metric: str) -> str:
    common = [loop.loop for loop in ranks[0].loops if all(any(o.loop == loop.loop for o in r.loops) for r in ranks)]
    return metric if metric in common else next(iter(common), "")


def _loop(rank: RankPlaces, loop: str) -> LoopPlaces:
    return next(found for found in rank.loops if found.loop == loop)


def _table(launches: Sequence[Sequence[Spot]], lines: _Lines) -> _Table:
    table: _Table = defaultdict(lambda: defaultdict(_Cell))
    for number, launch in enumerate(launches):
        is_now = number == len(launches) - 1
        for spot in launch:
            file, line, _ = spot.stack[0] if spot.stack else ("", 0, "")
            cell = table[(file, line) if is_now else lines.of(file, line)][spot.what]
            cell.calls[number] += spot.calls
            cell.amounts[number] += spot.amount
    return table


def _may_wait(what: str) -> bool:
    return what.startswith((WAITING, BACKWARD, "c10d::"))


def _explain_waits(tables: Sequence[_Table]) -> None:
    """Explain longer waits of a rank by what another rank does longer: the late rank has the place."""
    own = [sum(c.added_s for cells in t.values() for what, c in cells.items() if not _may_wait(what)) for t in tables]
    for table, mine in zip(tables, own, strict=True):
        late_s = max(own) - mine
        waits = [c for cells in table.values() for what, c in cells.items() if _may_wait(what) and c.added_s > 0]
        for cell in sorted(waits, key=lambda cell: -cell.added_s):
            cell.explained_s = min(cell.added_s, max(0.0, late_s))
            late_s -= cell.explained_s


def _all_slower(tables: Sequence[_Table], iteration_s: float) -> float:
    """Return the median factor by which places with equal calls are slower, at least 1; 1 if they are too few."""
    ratios = []
    for table in tables:
        for cells in table.values():
            then_s = _then_s(cells)
            same = not any(cell.is_counted or _may_wait(what) for what, cell in cells.items())
            if same and then_s > _TELLING * iteration_s:
                ratios.append(sum(cell.amounts[2] for cell in cells.values()) / then_s)
    return max(1.0, median_low(ratios)) if len(ratios) > 2 else 1.0


def _rows(
    tables: Sequence[_Table], whole_s: float, added_s: float, slower: float, changed: Set[_At], *, shows: bool | None
) -> list[PlaceRow]:
    if added_s <= 0:
        return []
    found: dict[_At, list[tuple[float, int]]] = defaultdict(list)
    for rank, table in enumerate(tables):
        for at, cells in table.items():
            then_s = _then_s(cells)
            beyond_s = sum(cell.added_s for cell in cells.values()) - (slower - 1) * then_s
            found[at].append((beyond_s, rank))
    noises = {waits: _noise_of_places(tables, whole_s, waits=waits) for waits in (False, True)}
    rows = []
    for at, of_ranks in found.items():
        beyond_s, rank = max(of_ranks)
        cells, share = tables[rank][at], beyond_s / added_s
        counted = {what: cell for what, cell in cells.items() if cell.is_counted}
        own = {what: cell for what, cell in cells.items() if what in counted or not counted}
        what, lead = max(own.items(), key=lambda item: (item[1].added_s, item[0]))
        then_s, now_s = _then_s(cells), sum(cell.amounts[2] for cell in cells.values())
        general = noises[_may_wait(what)]
        noise = max(_NOISES * _noise_s(cells), general.scatter * then_s)
        if at not in changed:
            noise = max(noise, general.limit_s(then_s)) if shows else math.inf
        elif shows is None and then_s:
            noise = math.inf
        by_time = share >= _LEAST_SHARE and beyond_s > noise
        if not (counted and share >= (_LEAST_CHANGED if at in changed else _LEAST_COUNTED)) and not by_time:
            continue
        everywhere = len(of_ranks) == len(tables) and min(of_ranks)[0] > beyond_s / 2
        everywhere |= bool(counted) and all(at in t and what in t[at] and t[at][what].is_counted for t in tables)
        rows.append(
            PlaceRow(
                place=(*at, ""),
                what=what,
                calls=(fmean(lead.calls[:2]), lead.calls[2]),
                amounts=(then_s, now_s),
                share=share,
                is_counted=bool(counted),
                rank=None if everywhere else rank,
            )
        )

    def is_exact(row: PlaceRow) -> bool:
        return row.share >= _LEAST_SHARE and (row.is_counted or not row.amounts[0])

    return sorted(rows, key=lambda row: (not is_exact(row), -row.share))


def _of_all(rows: Sequence[PlaceRow], added: float) -> tuple[list[PlaceRow], float]:
    """Make shares those of all that the rows add, if this is more than was judged; return it with them."""
    most = max(1.0, sum(row.share for row in rows))
    return [replace(row, share=row.share / most) for row in rows], most * added


def _then_s(cells: Mapping[str, _Cell]) -> float:
    return sum(fmean(cell.amounts[:2]) for cell in cells.values())


def _noise_s(cells: Mapping[str, _Cell]) -> float:
    return abs(sum(cell.amounts[0] - cell.amounts[1] for cell in cells.values()))


class _Noise(NamedTuple):
    """Noise of places between the launches of the baseline."""

    largest_s: float
    scatter: float  # standard deviation of what a place takes in another launch, as a share of its time
    places: int  # that it was estimated from; one of two ranks counts once, as ranks wait for each other

    def limit_s(self, then_s: float) -> float:
        """Return by how much an unchanged line exceeds its usual time without another cause."""
        quantile = student_t_quantile(_CONFIDENCE, self.places) if self.places else 0.0
        return max(max(_DEVIATIONS, quantile) * self.scatter * then_s, _NOISES * self.largest_s)


def _noise_of_places(tables: Sequence[_Table], whole_s: float, *, waits: bool) -> _Noise:
    parts = [(at, {w: c for w, c in of.items() if _may_wait(w) == waits}) for t in tables for at, of in t.items()]
    telling = [(at, cells) for at, cells in parts if _then_s(cells) > _TELLING * whole_s]
    # a launch minus the mean of two others scatters by 1.5 variances, one minus one by 2
    variance = fmean([0.75 * (_noise_s(cells) / _then_s(cells)) ** 2 for _, cells in telling] or [0.0])
    largest_s = max((_noise_s(cells) for _, cells in parts), default=0.0)
    return _Noise(largest_s, math.sqrt(variance), len({at for at, _ in telling}))


def _named(row: PlaceRow, ranks: Sequence[Sequence[Spot]], lines: _Lines) -> PlaceRow:
    """Add the name of the function to a row, and the changed line that calls it."""
    file, line, _ = row.place
    stacks = [spot.stack for rank in ranks for spot in rank if spot.stack and spot.stack[0][:2] == (file, line)]
    changed = (file, line) if (file, line) in lines.changed else ("", 0)
    if stacks and not changed[0]:
        calling = [place for stack in stacks for place in stack[1:] if place[:2] in lines.changed]
        hunks = [(f, n) for f, n in sorted(lines.changed) if (f, n - 1) not in lines.changed]
        changed = next(((f, n) for f, n, _ in calling), hunks[0] if len(hunks) == 1 else changed)
    return replace(row, place=(file, line, stacks[0][0][2] if stacks else ""), changed_at=changed)


def _place_text(place: Place) -> str:
    file, line, function = place
    if not file:
        return "outside of the repository"
    return f"{file}:{line}{f' in {function}' if function and function != '<module>' else ''}"


def rank_text(row: PlaceRow) -> str:
    """Return the place of a row, with its rank unless it is all ranks'."""
    return f"{_place_text(row.place)}{'' if row.rank is None else f', in rank {row.rank}'}"


def changed_text(row: PlaceRow) -> str:
    file, line = row.changed_at
    return file and ("here" if (file, line) == row.place[:2] else f"{file}:{line}")


def calls_text(row: PlaceRow) -> str:
    then, now = (f"{calls:.4g}" for calls in row.calls)
    return f"{then} -> {now}" if any(row.calls) else "-"


def _of_row(row: PlaceRow, added: str, counted: str) -> str:
    calls = f" {calls_text(row)} {counted}" if row.is_counted else ""
    text = changed_text(row)
    changed = f" (changed at {text})" if text not in ("", "here") else ""
    return f"{format_percent(row.share)} of {added}: {rank_text(row)}, {row.what}{calls}{changed}"


def _sentence(rows: Sequence[PlaceRow], others: Sequence[PlaceRow], added: str) -> str:
    more, of_others = "", sum(row.share for row in others)
    if of_others > _LEAST_SHARE:
        more += f"; {format_percent(of_others)} is in {counted(len(others), 'other place')}"
    if (rest := 1 - of_others - sum(row.share for row in rows)) > _LEAST_SHARE:
        more += f"; {format_percent(rest)} is in no single place"
    return f"{_of_row(rows[0], added, 'calls')}{more}"


def _without_rows(slower: float) -> str:
    return f"every place slower by about {format_percent(slower - 1)}" if slower >= _SLOWER else "no place stands out"
