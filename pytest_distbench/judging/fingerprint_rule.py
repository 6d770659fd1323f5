"""Two fingerprints -> what differs, in sentences, and the verdict; and what one says in numbers. Pure, no tolerance.

The numbers, how many collectives there are and how many bytes are sent and held, are what is judged where clocks and
values mean nothing, on the backend ``fake``, and what grows with the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from pytest_distbench.judging.collective_text import (
    CONFIRMING_LAUNCHES,
    changes,
    common_course,
    course_changes,
    payload_bytes,
)
from pytest_distbench.records.iteration import Fingerprint, named_ranks, of_rank, rank_ranges
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import format_bytes

METRIC = "fingerprint"
"""Name of the verdict; a ``metrics=`` that lists others leaves it unjudged."""

DIFFERS = "differs between launches of the same code"
COURSE_DIFFERS = "the steps that send something else differ between launches of the same code"


def differences(stored: Fingerprint, current: Fingerprint) -> list[str]:
    return [*_step_differences(stored, current), *_by_ranks(stored, current, _course_changes_of_rank)]


def _step_differences(stored: Fingerprint, current: Fingerprint) -> list[str]:
    """How ``current`` differs from ``stored``: one sentence each, none if they are equal.

    Collectives that both have are passed over; those of one operation and group that are left are told together:
    ``2 all_reduce of 25 MiB became 214 of 102.4 KiB``.
    """
    lines = _by_ranks(stored, current, _changes_of_rank)
    return lines + list(_changed(TOTALS, stored.totals, current.totals))


Told = Callable[[int, int], str]
"""A sentence of a number that was the first and is the second."""


def _bytes_became(what: str) -> Told:
    return lambda held, holds: f"{_size(held, holds)} of {what} per rank became {_size(holds, held)}"


FACTS: dict[str, Told] = {
    "parameter_bytes": lambda held, holds: (
        f"{_size(held, holds)} of parameters are no longer trained by any optimizer"
        if held and not holds
        else _bytes_became("parameters")(held, holds)
    ),
    "optimizer_bytes": _bytes_became("optimizer state"),
}
"""How a change of what a rank has in a step is told, by the names in ``worker.fingerprint.FACTS``."""

TOTALS: dict[str, Told] = {
    "parameters": lambda then, now: f"{then:,} parameters in the optimizers of all ranks became {now:,}",
    "optimizer_steps": lambda then, now: f"{then} optimizer step{'s' * (then != 1)} of all ranks became {now}",
}
"""The same of all ranks together."""


def _changed(rows: Mapping[str, Told], stored: Mapping[str, int], current: Mapping[str, int]) -> Iterator[str]:
    for name, tell in rows.items():
        if (then := stored.get(name, 0)) != (now := current.get(name, 0)):
            yield tell(then, now)


def _by_ranks(
    stored: Fingerprint, current: Fingerprint, changes_of: Callable[[Fingerprint, Fingerprint, int], Iterable[str]]
) -> list[str]:
    told: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted({*ranks_of(stored), *ranks_of(current)}):
        told.setdefault(tuple(changes_of(stored, current, rank)), []).append(rank)
    lines = []
    for sentences, who in told.items():
        whose = "" if len(told) == 1 else f"rank{'s' * (len(who) > 1)} {rank_ranges(who)}: "
        lines += [whose + sentence for sentence in sentences]
    return lines


def agree(fingerprints: Sequence[Fingerprint]) -> Fingerprint:
    """The fingerprint of several launches: theirs if they are equal; of their courses what they have in common."""
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


def needs_more(stored: Mapping[str, Fingerprint], current: Mapping[str, Fingerprint], *, launches: int) -> bool:
    """Whether all that differs is in steps beside the described ones, and too few launches have shown it."""
    both = [(stored[key], now) for key, now in current.items() if key in stored and not stored[key].missing]
    known = [(then, now) for then, now in both if not now.missing]
    return launches < CONFIRMING_LAUNCHES and not any(_step_differences(*pair) for pair in known)


def judge_fingerprints(
    stored: Mapping[str, Fingerprint], current: Mapping[str, Fingerprint], *, launches: int, drift: str = ""
) -> Finding:
    """One verdict for all fingerprints of a case.

    *changed* where any differs, also under other software: then it says so, because the collectives are what the
    network has to carry either way. *lost* where this run has none. *missing* where the baseline has none.
    """
    told: dict[str, list[str]] = {}
    unknown, without, undecided = "", "", ""
    for key, now in current.items():
        then = stored.get(key)
        if then is not None and then.missing == DIFFERS:
            undecided = undecided or f"{key}: {DIFFERS}"
        elif then is None or (then.missing and not now.missing):
            without = without or key
        elif now.missing and not then.missing:
            unknown = unknown or f"{key}: {now.missing}"
        elif lines := differences(then, now):
            told[key] = lines
        elif then.course_missing or (then.course and now.course_missing):
            undecided = undecided or f"{key}: {then.course_missing or now.course_missing}"
    lost = next((key for key in stored if key not in current), "")
    if told:
        lines = _attribute(told)
        more = f", and {len(lines) - 1} more difference{'s' * (len(lines) > 2)}" if len(lines) > 1 else ""
        reason = f"{lines[0]}{more}" + (f" (and the software: {drift})" if drift else "")
        return _verdict("communication", reason, launches, differences=lines)
    if unknown:
        return _verdict("unavailable", unknown, launches)
    if lost:
        return _verdict(
            "not-measured", f"the baseline has a communication fingerprint of {lost}; this run has none", launches
        )
    if without:
        return _verdict("no-baseline", f"the baseline has no communication fingerprint of {without}", launches)
    reason = undecided or next((f"{k}: {f.missing}" for k, f in current.items() if f.missing), "")
    return _verdict("equal", reason, launches)


def _verdict(code: ReasonCode, reason: str, launches: int, *, differences: Sequence[str] = ()) -> Finding:
    return Finding(
        metric=METRIC,
        code=code,
        unit="",
        better="exact",
        threshold=0.0,
        launches=launches,
        reason=reason,
        differences=list(differences),
    )


def _attribute(told: Mapping[str, Sequence[str]]) -> list[str]:
    """Sentences with the keys they hold for, the same ones once."""
    keys: dict[str, list[str]] = {}
    for key, lines in told.items():
        for line in lines:
            keys.setdefault(line, []).append(key)
    return [f"{who[0]}{f' and {len(who) - 1} more' if len(who) > 1 else ''}: {line}" for line, who in keys.items()]


def _changes_of_rank(stored: Fingerprint, current: Fingerprint, rank: int) -> Iterator[str]:
    """What differs for one rank. Of what only one of the two has looked at nothing is said."""
    before, after = of_rank(stored.collectives, rank) or [], of_rank(current.collectives, rank) or []
    yield from changes(before, after)
    if not (stored.is_full and current.is_full):
        return
    old, new = (Counter(of_rank(f.groups, rank) or []) for f in (stored, current))
    for word, groups in (("gone", old - new), ("added", new - old)):
        for group, number in groups.items():
            verb = ("are" if number > 1 else "is") if word == "gone" else ("were" if number > 1 else "was")
            plural = "s" * (number > 1)
            yield f"{number} process group{plural} {group.name} of {group.size} ranks {verb} {word}"
    held, holds = (
        {name: of_rank(by_ranks, rank) or 0 for name, by_ranks in f.facts.items()} for f in (stored, current)
    )
    yield from _changed(FACTS, held, holds)
    if any(f.course_missing for f in (stored, current)) or (stored.course and current.course):
        return  # told by the course
    was, now = of_rank(stored.beyond, rank), of_rank(current.beyond, rank)
    if Fraction(*was or (0, 1)) != Fraction(*now or (0, 1)):
        yield f"collectives that not every iteration has: {_tell_beyond(was)} became {_tell_beyond(now)}"


def _course_changes_of_rank(stored: Fingerprint, current: Fingerprint, rank: int) -> Iterable[str]:
    before, after = of_rank(stored.course, rank), of_rank(current.course, rank)
    if before is None or after is None:
        return []
    ordinary = of_rank(stored.collectives, rank) or [], of_rank(current.collectives, rank) or []
    return course_changes(before, after, ordinary=ordinary)


def _size(value: int, other: int) -> str:
    """Bytes, spelled out where rounded the other would read the same."""
    return format_bytes(value) if format_bytes(value) != format_bytes(other) else f"{value:,} B"


def _tell_beyond(beyond: tuple[int, int] | None) -> str:
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
    """The numbers of the first rank that it tells of, by the names of their metrics, which end in their unit.

    Collectives are of one iteration, sends and receives among them; optimizers keep their bytes beside the parameters.
    """
    rank = ranks_of(fingerprint)[0]
    rows = of_rank(fingerprint.collectives, rank) or []
    return {
        "collectives": sum(row.count for row in rows),
        "sent_bytes": payload_bytes(rows),
        **{name: of_rank(fingerprint.facts.get(name, {}), rank) or 0 for name in FACTS},
    }


def structure_metrics(fingerprints: Mapping[str, Fingerprint]) -> list[Sample]:
    """A metric of each number, ``parameter_bytes[of=step_time]``; but for collectives those of 0 are left out."""
    return [
        Sample(name=name, unit=unit_of(name), better="exact", value=value, at={"of": key})
        for key, fingerprint in fingerprints.items()
        if not fingerprint.missing
        for name, value in structure_of(fingerprint).items()
        if value or name == "collectives"
    ]


def fingerprints_of(launches: Sequence[LaunchRecord]) -> dict[str, Fingerprint]:
    """The fingerprints on which the launches agree, by key; one that differs between them says so."""
    found: dict[str, list[Fingerprint]] = {}
    for launch in launches:
        for key, fingerprint in launch.fingerprints.items():
            found.setdefault(key, []).append(fingerprint)
    return {key: agree(fingerprints) for key, fingerprints in found.items()}


def compared_fingerprints(result: CaseResult) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
    """Of this run and of what it was compared with, by the loops that both describe."""
    now, then = fingerprints_of(result.launches), result.reference.fingerprints
    then = then or fingerprints_of(result.reference.launches)
    both = [loop for loop in now if loop in then and not (now[loop].missing or then[loop].missing)]
    return {loop: now[loop] for loop in both}, {loop: then[loop] for loop in both}


def communication_texts(result: CaseResult) -> tuple[str, str]:
    """What an iteration sends in this run and in the baseline, of the first loop that differs; empty: nobody knows."""
    now, then = compared_fingerprints(result)
    loop = next((loop for loop in now if differences(then[loop], now[loop])), next(iter(now), None))
    return ("", "") if loop is None else (_calls(now[loop]), _calls(then[loop]))


def _calls(fingerprint: Fingerprint) -> str:
    found = structure_of(fingerprint)
    calls = found["collectives"]
    return f"{calls} call{'s' * (calls != 1)}, {format_bytes(found['sent_bytes'])}" if calls else "no calls"


def unit_of(name: str) -> str:
    """The unit of such a number."""
    return "B" if name.endswith("_bytes") else ""
