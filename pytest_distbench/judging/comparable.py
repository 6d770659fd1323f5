"""Whether two numbers, two sets of software or two workloads are the same, so that they can be compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.kinds import VerdictName
from pytest_distbench.records.metric import Measurement


def difference(stored: BaselineMetric | Measurement, current: Measurement) -> str:
    """Why a number cannot be compared with a stored one: ``mode was per-iteration, now loop``; empty where it can.

    What only one of them notes is not known to differ: entries from before it was noted stay comparable.
    """
    if stored.better != current.better:
        return f"the kind was {stored.better!r}, now it is {current.better!r}"
    if stored.unit != current.unit:
        return f"the unit was {stored.unit!r}, now it is {current.unit!r}"
    for name in sorted({*stored.identity} & {*current.identity}):
        if stored.identity[name] != current.identity[name]:
            return f"{name} was {stored.identity[name]}, now {current.identity[name]}"
    return ""


def software_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """What differs, by name: ``torch 2.12.0 -> 2.13.0``; ``-`` is a version that one side does not know.

    Ranks record only software that can change a result (worker.usage). A choice of the code that one side has not
    recorded is no difference.
    """
    names = {*_versions(stored), *_versions(current), *(stored.keys() & current.keys())}
    found = ((n, stored.get(n, "-"), current.get(n, "-")) for n in sorted(names))
    return [f"{name} {then} -> {now}" for name, then, now in found if then != now]


def version_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The same without what the code under test chooses. Where there is none, exact numbers have to be equal."""
    return software_changes(_versions(stored), _versions(current))


def _versions(software: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in software.items() if name not in SETTINGS}


_ANEW = "--distbench-update records it anew"
_LONGEST_SHOWN = 60
_MOST_SHOWN = 3

_OF_A_RUN = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a UUID
    r"|\d{4}-\d{2}-\d{2}(?:[T_ -]?\d{2}[:._-]?\d{2}(?:[:._-]?\d{2}(?:\.\d+)?)?)?"  # a date, with a time
    r"|\d{8}[T_-]?\d{4,6}|\d{10,}"  # the same without separators; seconds since 1970
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,}"  # a hash
    r"|(?<=tmp)[a-z0-9_]{6,8}(?![a-z0-9_])",  # the end of a temporary name
    re.IGNORECASE,
)
"""What names one run: it is another one in the next."""

_PLACE_OF_A_RUN = re.compile(r"(?:build|run|job|pipeline|workflow)_?(?:number|num|id|attempt)$|\bpid$", re.IGNORECASE)
"""Names that CI systems and schedulers give to such values."""


class Staleness(NamedTuple):
    """Why an entry is not of the workload that was measured."""

    kind: VerdictName
    reason: str


_COMPARED = [name for name in Conditions.__struct_fields__ if name != "kind"]
"""A launch of another kind has another launcher."""


def staleness(entry: BaselineEntry, case: Case) -> Staleness | None:
    """What differs between the stored conditions and workload and the measured ones; None where they are the same.

    Where all that differs names a run, not a workload, there will never be anything to compare with: that is told as
    what it is.
    """
    then, now = msgspec.structs.asdict(entry.conditions), msgspec.structs.asdict(case.conditions)
    if others := [f"{name} was {then[name]} and is {now[name]}" for name in _COMPARED if then[name] != now[name]]:
        return Staleness("incomparable", f"the baseline is of other conditions: {'; '.join(others)}; {_ANEW}")
    if entry.workload in ("", case.workload):  # one that another tool has made does not say
        return None
    then, now = dict(_flatten(entry.params)), dict(_flatten(case.params))
    places = [p for p in dict.fromkeys([*now, *then]) if then.get(p) != now.get(p)]
    shown = "; ".join(f"{p} was {_show(then, p)} and is {_show(now, p)}" for p in places[:_MOST_SHOWN])
    if len(places) > _MOST_SHOWN:
        shown += f"; and {len(places) - _MOST_SHOWN} more"
    if places and all(_names_a_run(p, then.get(p), now.get(p)) for p in places):
        return Staleness(
            "volatile",
            f"{shown}: that names this run, not the workload, so nothing can ever be compared. Write {{launch_dir}} in "
            f"its place where it is a folder, or leave it out; if the workload is another one, {_ANEW}",
        )
    what = f"; {shown}" if shown else ""
    return Staleness("incomparable", f"the workload's definition changed since the baseline; {_ANEW}{what}")


def _flatten(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Each plain value by its place: ``args[2]``, ``env.SEED``."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _flatten(inner, f"{place}[{i}]")
    elif place:  # parameters of which there is none have no place
        yield place, value


def _names_a_run(place: str, then: object, now: object) -> bool:
    """Whether two texts are the same but for what is another one in every run. A number alone is a parameter.

    Unless its place says otherwise: ``env.BUILD_NUMBER``.
    """
    if _PLACE_OF_A_RUN.search(place) and then is not None and now is not None:
        return True
    if not (isinstance(then, str) and isinstance(now, str)) or then.isdecimal() or now.isdecimal():
        return False
    before, after = _OF_A_RUN.sub("*", then), _OF_A_RUN.sub("*", now)
    return before == after and "*" in before


def _show(values: Mapping[str, Any], place: str) -> str:
    if place not in values:
        return "not there"
    text = repr(values[place])
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."
