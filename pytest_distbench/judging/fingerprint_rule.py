"""Compare two fingerprints: sentences on what differs, the verdict, and numbers of one. Pure, no tolerance.

The numbers, how many collectives there are and how many bytes are sent and held, are judged if timings and values mean
nothing, on the backend ``fake``, and show what grows with the ranks.

A loop may choose its number of steps while it runs. Therefore steps that differ from the described one are compared up
to the end of the shorter course: the kinds of these steps, by the numbers of the steps at which they occur. Their total
counts are compared for scripts, whose number of steps is their own, and for loops with equally many steps.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from pytest_distbench.records.iteration import (
    PICKLE,
    Collective,
    Course,
    Fingerprint,
    Group,
    StepKind,
    named_ranks,
    of_rank,
    rank_ranges,
)
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import FINGERPRINT, Sample
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import counted, format_bytes

DIFFERS = "differs between launches of the same code"
COURSE_DIFFERS = "the steps that send something else differ between launches of the same code"


def differences(stored: Fingerprint, current: Fingerprint) -> list[str]:
    return [*_step_differences(stored, current), *_by_ranks(stored, current, _course_changes_of_rank)]


def _step_differences(stored: Fingerprint, current: Fingerprint) -> list[str]:
    """Differences of ``current`` from ``stored``: one sentence each, none if they are equal.

    Collectives that both have are skipped; the others of one operation and group share a sentence:
    ``2 all_reduce of 25 MiB became 214 of 102.4 KiB``.
    """
    lines = _by_ranks(stored, current, _changes_of_rank)
    lines += _changed(TOTALS, stored.totals, current.totals)
    then, now = stored.pickled_bytes, current.pickled_bytes
    if then and now and max(then, now) >= PICKLE_FACTOR * min(then, now) and abs(now - then) >= PICKLE_BYTES:
        lines.append(f"pickled objects of {_size(then, now)} became {_size(now, then)} per rank")
    return lines


PICKLE_FACTOR, PICKLE_BYTES = 2, 4096
"""Size varies with a pickled object's value: the largest of a step must differ by this factor and by these bytes."""

Phrase = Callable[[int, int], str]  # makes a sentence of the old and the new number


def _bytes_became(what: str) -> Phrase:
    return lambda held, holds: f"{_size(held, holds)} of {what} per rank became {_size(holds, held)}"


FACTS: dict[str, Phrase] = {
    "parameter_bytes": lambda held, holds: (
        f"{_size(held, holds)} of parameters are no longer trained by any optimizer"
        if held and not holds
        else _bytes_became("parameters")(held, holds)
    ),
    "optimizer_bytes": _bytes_became("optimizer state"),
}
"""Sentences on a change of what a rank has in a step, by the names in ``worker.fingerprint.FACTS``."""

TOTALS: dict[str, Phrase] = {
    "parameters": lambda then, now: f"{then:,} parameters in the optimizers of all ranks became {now:,}",
    "optimizer_steps": lambda then, now: f"{then} optimizer step{'s' * (then != 1)} of all ranks became {now}",
}
"""Sentences on the totals over all ranks."""


def _changed(rows: Mapping[str, Phrase], stored: Mapping[str, int], current: Mapping[str, int]) -> Iterator[str]:
    for name, phrase in rows.items():
        if (then := stored.get(name, 0)) != (now := current.get(name, 0)):
            yield phrase(then, now)


def _by_ranks(
    stored: Fingerprint, current: Fingerprint, changes_of: Callable[[Fingerprint, Fingerprint, int], Iterable[str]]
) -> list[str]:
    found: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted({*ranks_of(stored), *ranks_of(current)}):
        found.setdefault(tuple(changes_of(stored, current, rank)), []).append(rank)
    lines = []
    for sentences, who in found.items():
        whose = "" if len(found) == 1 else f"rank{'s' * (len(who) > 1)} {rank_ranges(who)}: "
        lines += [whose + sentence for sentence in sentences]
    return lines


def agree(fingerprints: Sequence[Fingerprint]) -> Fingerprint:
    """The fingerprint of several launches: theirs if they are equal; of their courses the common part."""
    pickled = max(f.pickled_bytes for f in fingerprints)
    overlaps = [f.in_backward for f in fingerprints]
    overlap = overlaps[0] if all(o == overlaps[0] for o in overlaps) else {}
    fingerprints = [replace(f, pickled_bytes=pickled, in_backward=overlap) for f in fingerprints]
    if all(f == fingerprints[0] for f in fingerprints):
        return fingerprints[0]
    steps = [replace(f, course={}, course_missing="", beyond={} if f.course else f.beyond) for f in fingerprints]
    if any(f != steps[0] for f in steps):
        return Fingerprint(missing=DIFFERS)
    course = {}
    for who in {who: None for f in fingerprints for who in f.course}:
        of_launches = [f.course.get(who) for f in fingerprints]
        common = None if None in of_launches else common_course([c for c in of_launches if c is not None])
        if common is None:
            return replace(steps[0], course_missing=COURSE_DIFFERS)
        course[who] = common
    return replace(steps[0], course=course)


def judge_fingerprints(
    stored: Mapping[str, Fingerprint],
    current: Mapping[str, Fingerprint],
    *,
    launches: int,
    lines: Mapping[str, Sequence[str]] | None = None,
    software: str = "",
    absent: tuple[ReasonCode, str] | None = None,
    is_wanted: bool = True,
    is_last: bool = True,
) -> Finding:
    """Make one verdict for all fingerprints of a case.

    *changed* if any differs, also under other software: the sentence says so then, because the network carries the
    collectives either way. It stays open while all that differs is in steps other than the described ones, and too few
    launches have shown it. *missing* if this run has none. *new* if the baseline has none; ``absent`` says why, if
    known.
    """

    def say(code: ReasonCode, reason: str, differences: Sequence[str] = (), *, is_open: bool = False) -> Finding:
        return Finding(
            metric=FINGERPRINT,
            code=code if is_wanted else "not-judged",
            better="exact" if is_wanted else "info",
            threshold=0.0,
            launches=launches,
            reason=reason,
            differences=list(differences),
            is_open=is_open,
        )

    changed: dict[str, list[str]] = {}  # sentence -> the keys that it holds for
    is_of_steps = False
    unknown, without, undecided = "", "", ""
    for key, now in current.items():
        then = stored.get(key)
        if then is not None and then.missing == DIFFERS:
            undecided = undecided or f"{key}: {DIFFERS}"
        elif then is None or (then.missing and not now.missing):
            without = without or key
        elif now.missing and not then.missing:
            unknown = unknown or f"{key}: {now.missing}"
        elif found := differences(then, now if not software else replace(now, in_backward=then.in_backward)):
            is_of_steps = is_of_steps or bool(_step_differences(then, now))
            if where := added_at(then, now, (lines or {}).get(key, ())):
                found[0] = f"{found[0]} ({', '.join(where)})"
            for line in found:
                changed.setdefault(line, []).append(key)
        elif then.course_missing or (then.course and now.course_missing):
            undecided = undecided or f"{key}: {then.course_missing or now.course_missing}"
    if changed:
        sentences = [f"{k[0]}{f' and {len(k) - 1} more' if len(k) > 1 else ''}: {line}" for line, k in changed.items()]
        more = f", and {len(sentences) - 1} more difference{'s' * (len(sentences) > 2)}" if len(sentences) > 1 else ""
        reason = f"{sentences[0]}{more}" + (f" (and the software: {software})" if software else "")
        is_open = not is_last and not is_of_steps and launches < CONFIRMING_LAUNCHES
        return say("communication", reason, sentences, is_open=is_open)
    if unknown:
        return say("unavailable", unknown)
    if lost := next((key for key in stored if key not in current), ""):
        return say("not-measured", f"the baseline has a communication fingerprint of {lost}; this run has none")
    if without:
        reason = f"the baseline has no communication fingerprint of {without}"
        return say(*(absent if absent and is_wanted else ("no-baseline", reason)))
    return say("equal", undecided or next((f"{k}: {f.missing}" for k, f in current.items() if f.missing), ""))


def _changes_of_rank(stored: Fingerprint, current: Fingerprint, rank: int) -> Iterator[str]:
    """Differences for one rank. Parts that only one fingerprint has are ignored."""
    before, after = of_rank(stored.collectives, rank) or [], of_rank(current.collectives, rank) or []
    lines = changes(before, after)
    yield from lines
    was_in, is_in = of_rank(stored.in_backward, rank), of_rank(current.in_backward, rank)
    if not lines and was_in is not None and is_in is not None and was_in != is_in:
        number = sum(row.count for row in after)
        yield f"of {number} collectives {was_in} were issued before the backward pass had ended, now {is_in}"
    if not (stored.is_full and current.is_full):
        return
    old, new = (Counter(of_rank(f.groups, rank) or []) for f in (stored, current))
    yield from _changes_of_groups(old - new, new - old)
    held, holds = (
        {name: of_rank(by_ranks, rank) or 0 for name, by_ranks in f.facts.items()} for f in (stored, current)
    )
    yield from _changed(FACTS, held, holds)
    if any(f.course_missing for f in (stored, current)) or (stored.course and current.course):
        return  # the course shows it
    was, now = of_rank(stored.beyond, rank), of_rank(current.beyond, rank)
    if Fraction(*was or (0, 1)) != Fraction(*now or (0, 1)):
        yield f"collectives that not every iteration has: {_beyond_text(was)} became {_beyond_text(now)}"


def _course_changes_of_rank(stored: Fingerprint, current: Fingerprint, rank: int) -> Iterable[str]:
    before, after = of_rank(stored.course, rank), of_rank(current.course, rank)
    if before is None or after is None:
        return []
    ordinary = of_rank(stored.collectives, rank) or [], of_rank(current.collectives, rank) or []
    return course_changes(before, after, ordinary=ordinary)


def _size(value: int, other: int) -> str:
    return format_bytes(value) if format_bytes(value) != format_bytes(other) else f"{value:,} B"


def _beyond_text(beyond: tuple[int, int] | None) -> str:
    if beyond is None:
        return "none"
    collectives, iterations = beyond
    fewer = " fewer" if collectives < 0 else ""
    return f"{abs(collectives)}{fewer} in {iterations} iterations"


def ranks_of(fingerprint: Fingerprint) -> list[int]:
    parts: list[Mapping[str, object]] = [
        fingerprint.collectives,
        fingerprint.groups,
        *fingerprint.facts.values(),
        fingerprint.beyond,
        fingerprint.course,
    ]
    return named_ranks([who for part in parts for who in part]) or [0]


def structure_of(fingerprint: Fingerprint) -> dict[str, int]:
    """Numbers of a fingerprint's first rank, such as ``sent_bytes``, by metric name, which ends in the unit.

    Collectives are of one iteration, sends and receives included; optimizers hold their bytes besides the parameters.
    """
    rank = ranks_of(fingerprint)[0]
    rows = of_rank(fingerprint.collectives, rank) or []
    return {
        "collectives": sum(row.count for row in rows),
        "sent_bytes": payload_bytes(rows),
        **{name: of_rank(fingerprint.facts.get(name, {}), rank) or 0 for name in FACTS},
    }


def structure_metrics(fingerprints: Mapping[str, Fingerprint]) -> list[Sample]:
    """Make a metric of each number, ``parameter_bytes[of=step_time]``; only collectives may be 0."""
    return [
        Sample(name=name, unit=unit_of(name), better="exact", value=value, at={"of": key})
        for key, fingerprint in fingerprints.items()
        if not fingerprint.missing
        for name, value in structure_of(fingerprint).items()
        if value or name == "collectives"
    ]


def fingerprints_of(launches: Sequence[LaunchRecord]) -> dict[str, Fingerprint]:
    """Key of a loop's metric -> fingerprint of its launches, joined by :func:`agree`."""
    found: dict[str, list[Fingerprint]] = {}
    for launch in launches:
        for key, fingerprint in launch.fingerprints.items():
            found.setdefault(key, []).append(fingerprint)
    return {key: agree(fingerprints) for key, fingerprints in found.items()}


def compared_fingerprints(result: CaseResult) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
    """Fingerprints of this run and of the other side, by the loops that both describe."""
    now, then = fingerprints_of(result.launches), result.reference.fingerprints
    then = then or fingerprints_of(result.reference.launches)
    both = [loop for loop in now if loop in then and not (now[loop].missing or then[loop].missing)]
    return {loop: now[loop] for loop in both}, {loop: then[loop] for loop in both}


def communication_texts(result: CaseResult) -> tuple[str, str]:
    """What an iteration sends in this run and in the baseline, for the first loop that differs; or "" if unknown."""
    now, then = compared_fingerprints(result)
    changed = next((loop for loop in now if differences(then[loop], now[loop])), None)
    loop = next(iter(now), None) if changed is None else changed
    if loop is None:
        return "", ""
    here, there = _calls(now[loop]), _calls(then[loop])
    return (f"{here}, not the same" if changed is not None and here == there else here), there


def _calls(fingerprint: Fingerprint) -> str:
    found = structure_of(fingerprint)
    calls = found["collectives"]
    return f"{calls} call{'s' * (calls != 1)}, {format_bytes(found['sent_bytes'])}" if calls else "no calls"


def unit_of(name: str) -> str:
    """Unit of a number of :func:`structure_of`, by its name: "B" for bytes, "" for a count."""
    return "B" if name.endswith("_bytes") else ""


def payload_bytes(collectives: Iterable[Collective]) -> int:
    return sum(c.message_bytes * c.count for c in collectives if c.op != "recv")


_MOST_LINES = 3


def added_at(stored: Fingerprint, current: Fingerprint, lines: Sequence[str]) -> list[str]:
    """Lines of code that called what rank 0 did not send at the baseline."""
    then, now = (
        [replace(c, how=None) for c in _one_by_one(of_rank(f.collectives, 0) or [])] for f in (stored, current)
    )
    if len(lines) != len(now):
        return []
    found = difflib.SequenceMatcher(None, then, now, autojunk=False).get_opcodes()
    added = [lines[i] for what, _, _, first, end in found if what in ("insert", "replace") for i in range(first, end)]
    return list(dict.fromkeys(filter(None, added)))[:_MOST_LINES]


def changes(before: Sequence[Collective], after: Sequence[Collective]) -> list[str]:
    """How one sequence differs from another, one sentence each. Parts that only one sequence records are ignored."""
    before, after = comparable(before, after)
    gone, come = count(before), count(after)
    common = gone & come
    families = _families(gone - common), _families(come - common)
    if not any(families):
        for number, (old, new) in enumerate(zip(_one_by_one(before), _one_by_one(after), strict=True), 1):
            if old != new:
                was, now = (_describe({c: 1}, c.op, how=old.how != new.how).removeprefix("1 ") for c in (old, new))
                return [f"the same collectives in another order: number {number} was {was}, is {now}"]
        return []
    sentences = []
    for op, group in dict.fromkeys(itertools.chain(*families)):
        sides = [of_side.get((op, group), {}) for of_side in families]
        lasting = {c.dtype for c in sides[0]} & {c.dtype for c in sides[1]}
        for is_lasting in (True, False):  # the rest may have been converted, or have come or gone
            left, right = ({c: n for c, n in s.items() if (c.dtype in lasting) == is_lasting} for s in sides)
            if left or right:
                sentences.append(_became(left, right, op, _where(group)))
    sent, sends = format_bytes(payload_bytes(before)), format_bytes(payload_bytes(after))
    if sent != sends:
        sentences.append(f"{sent} sent per rank became {sends}")
    return sentences


def comparable(
    before: Sequence[Collective], after: Sequence[Collective]
) -> tuple[Sequence[Collective], Sequence[Collective]]:
    """Both sequences of collectives; without reductions, roots and partners if one of them does not record these."""
    if all(c.how is not None for c in (*before, *after)):
        return before, after
    return [replace(c, how=None) for c in before], [replace(c, how=None) for c in after]


def sent_text(collectives: Sequence[Collective]) -> str:
    """Collectives in words: ``1 all_reduce of 4 KiB float32 and 2 barrier``."""
    families = _families(count(comparable(collectives, [])[0]))
    words = [f"{_describe(f, op)}{_where(group)}" for (op, group), f in families.items()]
    return " and ".join(words) or "nothing"


def _changes_of_groups(gone: Counter[Group], added: Counter[Group]) -> Iterator[str]:
    """Sentences on process groups; one of the same name is the same group with other ranks."""
    for name in sorted({name for name, *_ in gone} & {name for name, *_ in added}):
        [old, *more], [new, *others] = ([group for group in side if group[0] == name] for side in (gone, added))
        if not more and not others and gone.pop(old) == added.pop(new):
            yield f"process group {name}: {_ranks_of(old)} became {_ranks_of(new)}"
    for word, be, groups in (("gone", ("is", "are"), gone), ("added", ("was", "were"), added)):
        for group, number in groups.items():
            yield f"{counted(number, 'process group')} {group[0]} of {_ranks_of(group)} {be[number > 1]} {word}"


def _ranks_of(group: Group) -> str:
    _, size, stride = group
    return f"{size} ranks " + (f"with stride {stride}" if stride else "at irregular distances")


def _where(group: str) -> str:
    return "" if group == "default" else f" in {group}"


def _became(old: Mapping[Collective, int], new: Mapping[Collective, int], op: str, where: str) -> str:
    if not new:
        return f"{_describe(old, op)}{where} {'was' if sum(old.values()) == 1 else 'were'} removed"
    if not old:
        return f"{_describe(new, op)}{where} {'was' if sum(new.values()) == 1 else 'were'} added"
    dtype, how = {c.dtype for c in old} != {c.dtype for c in new}, {c.how for c in old} != {c.how for c in new}
    was, now = (_describe(side, dtype=dtype, how=how) for side in (old, new))
    if was == now:
        was, now = (_describe(side, dtype=dtype, how=how, is_rounded=False) for side in (old, new))
    number, _, rest = was.partition(" ")
    return f"{number} {op} {rest}".rstrip() + f"{where} became {now}"


def _families(counts: Mapping[Collective, int]) -> dict[tuple[str, str], dict[Collective, int]]:
    found: dict[tuple[str, str], dict[Collective, int]] = {}
    for c, number in counts.items():
        found.setdefault((c.op, c.group), {})[c] = number
    return found


def count(collectives: Iterable[Collective]) -> Counter[Collective]:
    """Number of occurrences of each collective in a sequence, in whatever order they occur."""
    counts: Counter[Collective] = Counter()
    for c in collectives:
        counts[replace(c, count=1)] += c.count
    return counts


def _describe(
    counts: Mapping[Collective, int], op: str = "", *, dtype: bool = True, how: bool = False, is_rounded: bool = True
) -> str:
    """Describe collectives: ``214 all_reduce of 4 KiB to 100 KiB float32 (sum)``."""
    size = format_bytes if is_rounded else "{:,} B".format
    sizes = sorted({c.message_bytes for c in counts if c.dtype != PICKLE})
    words = [str(sum(counts.values())), *([op] if op else [])]
    if sizes and sizes[-1]:
        span = size(sizes[0]) if len(sizes) == 1 else f"{size(sizes[0])} to {size(sizes[-1])}"
        words += ["of", span]
    elif dtype and not sizes:
        words.append("of")
    if dtype and (kinds := sorted({c.dtype for c in counts} - {""})):
        words.append(" and ".join(kinds))
    if how and (ways := sorted({c.how for c in counts if c.how})):
        words.append(f"({' and '.join(ways)})")
    return " ".join(words)


def _one_by_one(collectives: Iterable[Collective]) -> Iterator[Collective]:
    for c in collectives:
        yield from [replace(c, count=1)] * c.count


CONFIRMING_LAUNCHES = 3
"""Launches that must show the same difference in later steps: what depends on timing differs between launches."""


def common_course(courses: Sequence[Course]) -> Course | None:
    """The common part of some courses, or None if nothing is certain.

    Launches with different numbers of steps agree if their common steps do.
    """
    if all(course == courses[0] for course in courses):
        return courses[0]
    shortest = min(courses, key=lambda course: course.steps)
    if all(course.steps == shortest.steps for course in courses):
        return None
    steps = _last_comparable(shortest)
    uncertain = {_sent(kind) for course in courses for kind in _uncertain(course, steps)}
    cut = [_cut(course, steps, uncertain) for course in courses]
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
        uncertain = {_sent(kind) for course in (stored, current) for kind in _uncertain(course, steps)}
        before, after = (_cut(course, steps, uncertain) for course in (stored, current))
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
    for kind in sorted(old.values(), key=lambda kind: not kind.every):
        other = next((kind for kind in new.values() if _sent(kind) == _sent(kind)), None)
        if other is not None:
            del old[_place(kind)], new[_place(other)]
            what = sent_text(kind.collectives) if kind.collectives is not None else f"{kind.entered} collectives"
            yield f"{_when(kind, before)} sent {what}; now {_when(other, after)}"
    for kind in old.values():
        lines = _changes_of(kind.collectives, kind.entered, ordinary[1])
        yield from _attributed(lines, kind, before, general)
    for kind in new.values():
        lines = _changes_of(ordinary[0], None, kind.collectives, kind.entered)
        yield from _attributed(lines, kind, after, general)


def _attributed(lines: Sequence[str], kind: StepKind, course: Course, general: Sequence[str]) -> Iterator[str]:
    yield from (f"{_when(kind, course)}: {line}" for line in lines if line not in general)


def _changes_of(
    before: Sequence[Collective] | None,
    number_before: int | None,
    after: Sequence[Collective] | None,
    number_after: int | None = None,
) -> list[str]:
    if before is not None and after is not None:
        return changes(before, after)
    then = number_before if number_before is not None else sum(row.count for row in before or ())
    now = number_after if number_after is not None else sum(row.count for row in after or ())
    return [f"{then} collectives became {now}"] if then != now else []


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
    """Family -> number and bytes of a rank over all steps; None if a kind is not described."""
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
    """The last step of the shorter course that is comparable: a script's last step includes its end."""
    return shortest.steps - shortest.is_whole


def _uncertain(course: Course, steps: int) -> list[StepKind]:
    """Kinds for which it is unknown how many of the first steps belong to them."""
    return [kind for kind in course.others if kind.last > steps >= kind.first and kind.steps > 1 and not kind.every]


def _cut(course: Course, steps: int, uncertain: Iterable[object]) -> Course:
    others = []
    for kind in course.others:
        if kind.first > steps or _sent(kind) in uncertain:
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
