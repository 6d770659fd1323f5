"""Numbers out of what a script prints and writes: the table of readers, and what they find as observations.

A conftest adds a reader by one row: ``READERS["mine"] = read``, and asks for it with ``Reader(kind="mine", ...)``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable

from pytest_distbench.errors import ReadingError, show, tell
from pytest_distbench.launch.readers import formats
from pytest_distbench.launch.readers.place import Found, Place, limited
from pytest_distbench.launch.reduce import partial
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import Partial
from pytest_distbench.records.metric import MOST_TAKEN_FROM, TAKES, Observation, Reader, metric_key
from pytest_distbench.records.plan import LaunchPlan

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


def readings(plan: LaunchPlan) -> list[Partial]:
    return [
        partial(rank, _observe(name, reader, Place(plan, rank)))
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
        raise ReadingError(f"{key}: {_times(found)} found, and skip={reader.skip} leaves nothing: {found[-1].where}")
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


def _times(found: list[Found]) -> str:
    return f"{len(found)} value{'s' * (len(found) != 1)}"
