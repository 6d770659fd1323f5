"""What differs between two sequences of collectives, and between two courses of steps, in sentences. Pure, exact.

How many steps there are may be chosen while a loop runs. So what is compared of steps that are not like the described
one is what both courses have: the kinds of the steps up to the end of the shorter, by the numbers of the steps at which
they come. How often they came in all is compared of scripts, whose number of steps is their own, and of loops with
equally many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_distbench.records.iteration import PICKLE, Collective, Course, StepKind
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_bytes


def payload_bytes(collectives: Iterable[Collective]) -> int:
    return sum(c.message_bytes * c.count for c in collectives if c.op != "recv")


def changes(before: Sequence[Collective], after: Sequence[Collective]) -> list[str]:
    """How one sequence differs from another, one sentence each. Of what only one holds nothing is said."""
    before, after = alike_told(before, after)
    gone, come = count(before), count(after)
    common = gone & come
    gone, come = gone - common, come - common
    if not gone and not come:
        return _reordering(before, after)
    sentences = []
    old, new = _families(gone), _families(come)
    for op, group in dict.fromkeys((*old, *new)):
        where = _where(group)
        for was, now in _by_dtype(old.get((op, group), {}), new.get((op, group), {})):
            sentences.append(_became(was, now, op, where))
    sent, sends = format_bytes(payload_bytes(before)), format_bytes(payload_bytes(after))
    if sent != sends:
        sentences.append(f"{sent} sent per rank became {sends}")
    return sentences


def alike_told(
    before: Sequence[Collective], after: Sequence[Collective]
) -> tuple[Sequence[Collective], Sequence[Collective]]:
    """Both without reductions, roots and partners where one of them does not hold these."""
    if all(c.how is not None for c in (*before, *after)):
        return before, after
    return [replace(c, how=None) for c in before], [replace(c, how=None) for c in after]


def told(collectives: Sequence[Collective]) -> str:
    """``1 all_reduce of 4 KiB float32 and 2 barrier``."""
    families = _families(count(alike_told(collectives, [])[0]))
    words = [f"{_tell(f, op, _Shown())}{_where(group)}" for (op, group), f in families.items()]
    return " and ".join(words) or "nothing"


def _where(group: str) -> str:
    return "" if group == "default" else f" in {group}"


def _became(old: Mapping[Collective, int], new: Mapping[Collective, int], op: str, where: str) -> str:
    if not new:
        return f"{_tell(old, op, _Shown())}{where} {'was' if sum(old.values()) == 1 else 'were'} removed"
    if not old:
        return f"{_tell(new, op, _Shown())}{where} {'was' if sum(new.values()) == 1 else 'were'} added"
    shown = _Shown(
        dtype={c.dtype for c in old} != {c.dtype for c in new}, how={c.how for c in old} != {c.how for c in new}
    )
    was, now = _tell(old, "", shown), _tell(new, "", shown)
    if was == now:
        shown = shown._replace(is_rounded=False)
        was, now = _tell(old, "", shown), _tell(new, "", shown)
    number, _, rest = was.partition(" ")
    return f"{number} {op} {rest}".rstrip() + f"{where} became {now}"


def _families(counts: Mapping[Collective, int]) -> dict[tuple[str, str], dict[Collective, int]]:
    found: dict[tuple[str, str], dict[Collective, int]] = {}
    for c, number in counts.items():
        found.setdefault((c.op, c.group), {})[c] = number
    return found


def _by_dtype(
    old: Mapping[Collective, int], new: Mapping[Collective, int]
) -> Iterator[tuple[dict[Collective, int], dict[Collective, int]]]:
    """What has a dtype that is old and new, and the rest: that may have been converted, or have come or gone."""
    lasting = {c.dtype for c in old} & {c.dtype for c in new}
    for is_lasting in (True, False):
        was = {c: n for c, n in old.items() if (c.dtype in lasting) == is_lasting}
        now = {c: n for c, n in new.items() if (c.dtype in lasting) == is_lasting}
        if was or now:
            yield was, now


def count(collectives: Iterable[Collective]) -> Counter[Collective]:
    """Collective (counted once) -> how often it occurs, wherever."""
    counts: Counter[Collective] = Counter()
    for c in collectives:
        counts[replace(c, count=1)] += c.count
    return counts


class _Shown(NamedTuple):
    """What is told of collectives besides their number and sizes."""

    dtype: bool = True
    how: bool = False
    is_rounded: bool = True


def _tell(counts: Mapping[Collective, int], op: str, shown: _Shown) -> str:
    """``214 all_reduce of 4 KiB to 100 KiB float32 (sum)``."""
    size = format_bytes if shown.is_rounded else "{:,} B".format
    sizes = sorted({c.message_bytes for c in counts if c.dtype != PICKLE})
    words = [str(sum(counts.values())), *([op] if op else [])]
    if sizes and sizes[-1]:
        span = size(sizes[0]) if len(sizes) == 1 else f"{size(sizes[0])} to {size(sizes[-1])}"
        words += ["of", span]
    elif shown.dtype and not sizes:
        words.append("of")
    if shown.dtype and (kinds := sorted({c.dtype for c in counts} - {""})):
        words.append(" and ".join(kinds))
    if shown.how and (ways := sorted({c.how for c in counts if c.how})):
        words.append(f"({' and '.join(ways)})")
    return " ".join(words)


def _reordering(before: Sequence[Collective], after: Sequence[Collective]) -> list[str]:
    """Where two sequences of the same collectives part; nothing if they do not."""
    for number, (old, new) in enumerate(zip(_one_by_one(before), _one_by_one(after), strict=True), 1):
        if old != new:
            shown = _Shown(how=old.how != new.how)
            was, now = (_tell({c: 1}, c.op, shown).removeprefix("1 ") for c in (old, new))
            return [f"the same collectives in another order: number {number} was {was}, is {now}"]
    return []


def _one_by_one(collectives: Iterable[Collective]) -> Iterator[Collective]:
    for c in collectives:
        yield from [replace(c, count=1)] * c.count


CONFIRMING_LAUNCHES = 3
"""So many launches have to show one difference of courses: what depends on time differs between them."""


def common_course(courses: Sequence[Course]) -> Course | None:
    """What all of them have; None where that is nothing certain.

    Those of launches with other numbers of steps agree as far as all of them went.
    """
    if all(course == courses[0] for course in courses):
        return courses[0]
    shortest = min(courses, key=lambda course: course.steps)
    if all(course.steps == shortest.steps for course in courses):
        return None
    steps = _last_comparable(shortest)
    doubtful = {_sent(kind) for course in courses for kind in _uncertain(course, steps)}
    cut = [_cut(course, steps, doubtful) for course in courses]
    return cut[0] if steps > 0 and all(course == cut[0] for course in cut) else None


def course_changes(
    stored: Course, current: Course, *, ordinary: tuple[Sequence[Collective], Sequence[Collective]]
) -> list[str]:
    """How one course differs from another: one sentence each, none if they are equal.

    ``ordinary`` is what the described step sends, before and now.
    """
    lines: list[str] = []
    is_whole = stored.is_whole and current.is_whole
    before, after = stored, current
    if stored.steps != current.steps:
        if is_whole:
            lines.append(f"{stored.steps} steps of the whole run became {current.steps}")
        steps = _last_comparable(min(stored, current, key=lambda course: course.steps))
        doubtful = {_sent(kind) for course in (stored, current) for kind in _uncertain(course, steps)}
        before, after = (_cut(course, steps, doubtful) for course in (stored, current))
    lines += _kind_changes(before, after, ordinary)
    if lines and is_whole:
        lines += _totals_changed(stored, current, ordinary)
    return lines


def _kind_changes(
    before: Course, after: Course, ordinary: tuple[Sequence[Collective], Sequence[Collective]]
) -> Iterator[str]:
    general = changes(*ordinary)
    old, new = ({_place(kind): kind for kind in course.others} for course in (before, after))
    for place in sorted(old.keys() & new.keys()):
        was, now = old.pop(place), new.pop(place)
        lines = _changes_of(was.collectives, was.entered, now.collectives, now.entered)
        yield from _attributed(lines, now, after, general)
    for moved in sorted(old.values(), key=lambda kind: not kind.every):
        other = next((kind for kind in new.values() if _sent(kind) == _sent(moved)), None)
        if other is not None:
            del old[_place(moved)], new[_place(other)]
            what = told(moved.collectives) if moved.collectives is not None else f"{moved.entered} collectives"
            yield f"{_when(moved, before)} sent {what}; now {_when(other, after)}"
    for kind in old.values():
        lines = _changes_of(kind.collectives, kind.entered, ordinary[1])
        yield from _attributed(lines, kind, before, general)
    for kind in new.values():
        lines = _changes_of(ordinary[0], None, kind.collectives, kind.entered)
        yield from _attributed(lines, kind, after, general)


def _attributed(lines: Sequence[str], kind: StepKind, course: Course, general: Sequence[str]) -> Iterator[str]:
    """Sentences with the steps they are about; those that are said of every step are not said again."""
    yield from (f"{_when(kind, course)}: {line}" for line in lines if line not in general)


def _changes_of(
    before: Sequence[Collective] | None,
    number_before: int | None,
    after: Sequence[Collective] | None,
    number_after: int | None = None,
) -> list[str]:
    """What differs, in numbers alone where one of the two is not described."""
    if before is not None and after is not None:
        return changes(before, after)
    numbers = [_number(rows, number) for rows, number in ((before, number_before), (after, number_after))]
    return [f"{numbers[0]} collectives became {numbers[1]}"] if numbers[0] != numbers[1] else []


def _number(rows: Sequence[Collective] | None, number: int | None) -> int:
    return number if number is not None else sum(row.count for row in rows or ())


def _when(kind: StepKind, course: Course) -> str:
    if not kind.first:
        return "before the first step"
    if kind.every == 1:
        return f"steps {kind.first} to {kind.last} of {course.steps}"
    if kind.every:
        start = "" if kind.first == kind.every else f" from the {_ordinal(kind.first)} on"
        return f"every {_ordinal(kind.every)} step{start} ({kind.steps} of {course.steps})"
    if kind.steps == 1:
        return f"step {kind.first} of {course.steps}"
    return f"{kind.steps} of {course.steps} steps"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _totals_changed(
    stored: Course, current: Course, ordinary: tuple[Sequence[Collective], Sequence[Collective]]
) -> Iterator[str]:
    """Numbers and bytes of the whole run, by operation, dtype and group."""
    old, new = (_totals(course, rows) for course, rows in zip((stored, current), ordinary, strict=True))
    if old is None or new is None:
        return
    for family in dict.fromkeys((*old, *new)):
        was, now = old.get(family, (0, 0)), new.get(family, (0, 0))
        if was != now:
            op, dtype, group = family
            name = " ".join(part for part in (op, dtype, "" if group == "default" else f"in {group}") if part)
            yield f"{name} of the whole run: {_amount(was)} became {_amount(now)}"


def _totals(course: Course, ordinary: Iterable[Collective]) -> dict[tuple[str, str, str], tuple[int, int]] | None:
    """Family -> how many and how many bytes of a rank; None where not every kind is described."""
    numbers: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    rest = course.steps - sum(kind.steps for kind in course.others if kind.first)
    for rows, steps in [(ordinary, rest), *((kind.collectives, kind.steps) for kind in course.others)]:
        if rows is None:
            return None
        for row in rows:
            numbers[row.op, row.dtype, row.group] += row.count * steps
            sizes[row.op, row.dtype, row.group] += row.count * row.message_bytes * steps
    return {family: (number, sizes[family]) for family, number in numbers.items()}


def _amount(amount: tuple[int, int]) -> str:
    number, size = amount
    return f"{number:,}, {format_bytes(size)}" if size else f"{number:,}"


def _last_comparable(shortest: Course) -> int:
    """The last step of the shorter course that is one in the longer, too: a script's last has its end in it."""
    return shortest.steps - shortest.is_whole


def _uncertain(course: Course, steps: int) -> list[StepKind]:
    """The kinds of which it is not known how many of the first steps are such."""
    return [kind for kind in course.others if kind.last > steps >= kind.first and kind.steps > 1 and not kind.every]


def _cut(course: Course, steps: int, doubtful: Iterable[object]) -> Course:
    others = []
    for kind in course.others:
        if kind.first > steps or _sent(kind) in doubtful:
            continue
        if kind.every and kind.last > steps:
            number = (steps - kind.first) // kind.every + 1
            last = kind.first + (number - 1) * kind.every
            kind = replace(kind, steps=number, last=last, every=kind.every if number > 1 else 0)
        others.append(kind)
    return Course(steps=steps, others=others)


def _place(kind: StepKind) -> tuple[int, ...]:
    return (kind.first, kind.last, kind.every, kind.steps)


def _sent(kind: StepKind) -> object:
    return kind.entered if kind.collectives is None else tuple(replace(c, how=None) for c in kind.collectives)
