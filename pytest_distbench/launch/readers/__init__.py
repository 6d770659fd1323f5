"""Numbers out of what a script prints and writes: the readers, what is wrong with one, and what they find.

A conftest adds a reader by one row: ``READERS["mine"] = read``, and asks for it with ``Reader(kind="mine", ...)``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from typing import Any

from pytest_distbench.errors import ReadingError, show, tell
from pytest_distbench.launch.readers import formats
from pytest_distbench.launch.readers.formats import VALUE, Found, Place, limited
from pytest_distbench.launch.reduce import of_rank
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import MOST_TAKEN_FROM, TAKES, Observation, Reader, as_scalar, is_axis, metric_key
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wanted import Wanted, number, one_of, whole

_LONGEST_BESIDE = 80
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)

READERS: dict[str, Callable[[Reader, Place], list[Found]]] = {
    "stdout": formats.read_stdout,
    "jsonl": formats.read_jsonl,
    "csv": formats.read_csv,
    "mllog": formats.read_mllog,
    "tensorboard": formats.read_tensorboard,
}
"""By kind: what finds a reader's values at a place, in their order; a ReadingError where there is none."""


def problem_with(reader: Reader) -> str:
    """The first thing that is wrong with it, as wanted and found, before anything is launched; empty: nothing is."""
    if reader.kind not in READERS:
        return f"unknown kind of reader {show(reader.kind)}; known are {', '.join(READERS)}"
    if reader.kind == "stdout":
        return _problem_with_pattern(reader.source) or _problem_with_values(reader)
    return _problem_with_values(reader)


def _problem_with_pattern(source: str) -> str:
    try:
        pattern = re.compile(source)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{source!r} is no regular expression: {error}"
    if pattern.groups == 1 or VALUE in pattern.groupindex:
        return ""
    return (
        f"{source!r} has {pattern.groups} groups; wanted one around the number, or several of which one is "
        f"(?P<{VALUE}>...)"
    )


def _problem_with_values(reader: Reader) -> str:
    kind = METRIC_KINDS[reader.better]
    for name, wanted in _WANTED.items():
        if wanted.take(value := getattr(reader, name)) is None:
            return f"{name}={show(value)}; wanted {wanted.words}"
    if reader.take and kind.shape == "series":
        return f"take={reader.take!r} makes one number, and better={reader.better!r} judges a series"
    for name, scalars in (("at", reader.at), ("identity", reader.identity)):
        if not isinstance(scalars, dict) or not all(map(is_axis, scalars)):
            return f"{name}={show(scalars)}; wanted a dict from names, without [ ] = and , to plain values"
        if not all(isinstance(v, bool | int | float | str) and as_scalar(v) is not None for v in scalars.values()):
            return f"{name}={show(scalars)}; wanted finite numbers, printable texts, True or False"
    return ""


_WANTED: dict[str, Wanted[Any]] = {
    "scale": Wanted("a finite number other than 0", lambda value: number().plain().take(value) or None),
    "rank": Wanted("the number of a rank, or 'all'", lambda value: "all" if value == "all" else whole(0).take(value)),
    "skip": Wanted("how many values at the start do not count", whole(0).take),
    "first": Wanted("how many values count", lambda value: "all" if value is None else whole(1).take(value)),
    "take": Wanted(one_of(TAKES).words, one_of(["", *TAKES]).take),
}


def readings(plan: LaunchPlan) -> list[Observation]:
    return [
        of_rank(rank, _observe(name, reader, Place(plan, rank)))
        for name, reader in plan.read.items()
        for rank in (range(plan.processes) if reader.rank == "all" else [reader.rank])
    ]


def _observe(name: str, reader: Reader, place: Place) -> Observation:
    key = metric_key(name, reader.at)
    try:
        with limited():
            found = READERS[reader.kind](reader, place)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, csv.Error) as error:
        source = reader.source or "the output"
        raise ReadingError(f"{key}: cannot read {show(source)}: {tell(error)}") from None
    kept = found[reader.skip :]
    if not kept:
        number = f"{len(found)} value{'s' * (len(found) != 1)} found"
        raise ReadingError(f"{key}: {number}, and skip={reader.skip} leaves nothing: {found[-1].where}")
    if reader.first is not None and len(kept) < reader.first:
        raise ReadingError(
            f"{key}: wanted the first {reader.first} values, found {len(kept)}"
            + (f" after the {reader.skip} that are skipped" if reader.skip else "")
            + f"; the last is {kept[-1].where}"
        )
    kept = kept[: reader.first]
    values = [_number(key, one) * reader.scale for one in kept]
    kind = METRIC_KINDS[reader.better]
    take = reader.take or ("last" if kind.shape == "number" else "")
    taken_from = values[:MOST_TAKEN_FROM] if take and kind.is_of_training else []
    values = [TAKES[take](values)] if take else values
    why = kind.why_impossible(values, reader.unit, is_series=not take) if kind.is_judged or reader.bounds else ""
    if why:
        raise ReadingError(f"{key}: {why}: {kept[-1].where}; is unit={reader.unit!r} right? (info is not judged)")
    return Observation(
        name=name,
        unit=reader.unit,
        better=reader.better,
        reduce=kind.reduce,
        values=values,
        is_series=not take,
        beside=[one.beside[:_LONGEST_BESIDE] for one in kept] if reader.better == "curve" else [],
        at=reader.at,
        identity=reader.defining,
        bounds=reader.bounds,
        taken_from=taken_from,
    )


def _number(key: str, found: Found) -> float:
    """The finite number a text says; commas may separate thousands, and nothing else."""
    text = found.text.strip()
    try:
        number = float(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text.replace("_", " _"))
    except ValueError:
        raise ReadingError(f"{key}: {show(text)} is no number: {found.where}") from None
    if not math.isfinite(number):
        raise ReadingError(f"{key}: the value is {text}: {found.where}")
    return number
