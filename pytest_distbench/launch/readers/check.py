"""What is wrong with a reader, before anything is launched."""

from __future__ import annotations

import re
from typing import Any

from pytest_distbench.errors import show
from pytest_distbench.launch.readers import READERS
from pytest_distbench.launch.readers.formats import VALUE
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import TAKES, Reader, as_scalar, is_axis
from pytest_distbench.records.wanted import Wanted, number, one_of, whole
from pytest_distbench.records.wire import can_be_written


def problem_with(reader: Reader) -> str:
    """The first thing that is wrong, as wanted and found; empty where nothing is."""
    if reader.kind not in READERS:
        return f"unknown kind of reader {show(reader.kind)}; known are {', '.join(READERS)}"
    for name in ("source", "key", "since", "unit", "take"):
        if not isinstance(getattr(reader, name), str):
            return f"{name}={show(getattr(reader, name))}; wanted text"
        if not can_be_written(getattr(reader, name)):
            return f"{name}={show(getattr(reader, name))} holds half of a surrogate pair, which no output or file can"
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
        if not all(map(_is_plain, scalars.values())):
            return f"{name}={show(scalars)}; wanted finite numbers, printable texts, True or False"
    return ""


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str) and as_scalar(value) is not None


_WANTED: dict[str, Wanted[Any]] = {
    "scale": Wanted("a finite number other than 0", lambda value: number().plain().take(value) or None),
    "rank": Wanted("the number of a rank, or 'all'", lambda value: "all" if value == "all" else whole(0).take(value)),
    "skip": Wanted("how many values at the start do not count", whole(0).take),
    "first": Wanted("how many values count", lambda value: "all" if value is None else whole(1).take(value)),
    "take": Wanted(one_of(TAKES).words, one_of(["", *TAKES]).take),
}
