"""Rows of a file that a script wrote: which count, which belong to the last attempt, which empty cells mean NaN. Pure.

A row is a line of a CSV file, a line of JSON, or an element of a list in a JSON document.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pytest_distbench.errors import ReadingError, show
from pytest_distbench.records.metric import Reader
from pytest_distbench.units import counted

_STEPS = ("global_step", "trainer/global_step", "train/global_step", "_step", "step", "iteration", "iter")
_EPOCHS = ("epoch", "train/epoch")
_TELL_APART = ("rank", "global_rank", "local_rank", "split", "mode", "phase", "stage")
"""Columns by which loggers distinguish rows with the same step."""
_MOST_SHOWN = 5

MISSING: Final = object()


class Row(NamedTuple):
    cells: Any  # by column; of a list in a JSON document, perhaps the value itself
    place: str
    context: str


class Value(NamedTuple):
    """A value of a file, with its place, and the text of its row for errors and curves."""

    value: Any  # None: the cell is empty, where it should not be
    place: str
    context: str


Position = tuple[float, ...]  # the epoch and the step, as far as rows have them


@dataclass(slots=True)
class _Cell:
    """A cell of the column to be read, in a row that counts, with what is known of its row."""

    value: Value
    is_empty: bool
    filled: frozenset[str]  # columns that are not empty in its row
    row: Mapping[str, Any]  # of its columns those that may be asked for
    at: Position | None = None


def look_up(value: Any, key: str) -> Any:
    """The value at a dotted key, or MISSING: ``a.b`` is ``b`` inside ``a``, unless there is a key ``a.b``.

    ``a.0`` is the first element of the list ``a``.
    """
    if not key:
        return value
    if isinstance(value, list):
        first, _, rest = key.partition(".")
        return look_up(value[int(first)], rest) if first.isdecimal() and int(first) < len(value) else MISSING
    parts = key.split(".") if isinstance(value, Mapping) else []
    for end in range(len(parts), 0, -1):
        if (name := ".".join(parts[:end])) in value:
            return look_up(value[name], ".".join(parts[end:]))
    return MISSING


def values_of(rows: Iterable[Row], key: str, reader: Reader) -> tuple[list[Value], str]:
    """Values of a key in the rows that count ("" for the rows themselves), and a remark on dropped rows, or "".

    Raises:
        ReadingError: there is none, or one column mixes several series.
    """
    cells = _choose(rows, key, reader)
    names = _position(cells, reader)
    for cell in cells if names else ():
        found = [_as_number(cell.row.get(name)) for name in names]
        cell.at = None if None in found else tuple(number for number in found if number is not None)
    _refuse_mixed(cells, reader)
    cells, dropped = _last_attempt(cells, names)
    return [cell.value for cell in _with_nan(cells)], dropped


def _choose(rows: Iterable[Row], key: str, reader: Reader) -> list[_Cell]:
    """Cells of a key in the rows where ``where`` holds; at least one is not empty."""
    cells, known, met = [], dict[str, None](), {name: dict[str, None]() for name in reader.where}
    kinds: dict[frozenset[str], tuple[frozenset[str], list[str]]] = {}  # of a million rows all share a few
    wanted = {*_STEPS, *_EPOCHS, *_TELL_APART}
    unnamed = 0
    for row, place, context in rows:
        columns = row if isinstance(row, Mapping) else {}
        unnamed += not columns
        known.update(dict.fromkeys(columns))
        for name in reader.where:
            if len(met[name]) < _MOST_SHOWN and (value := look_up(row, name)) is not MISSING:
                met[name][str(value)] = None
        if not all(_equals(look_up(row, name), value) for name, value in reader.where.items()):
            continue
        if (value := look_up(row, key)) is not MISSING:
            filled = frozenset([name for name, cell in columns.items() if cell is not None and cell != ""])
            filled, asked = kinds.setdefault(filled, (filled, [name for name in wanted if name in filled]))
            kept = {name: columns[name] for name in asked}
            if reader.step:
                kept[reader.step] = look_up(row, reader.step)
            is_empty = _is_empty(value)
            cells.append(_Cell(Value(None if is_empty else value, place, context), is_empty, filled, kept))
    if not all(cell.is_empty for cell in cells):
        return cells
    there = f"there are {', '.join(known) or (f'{unnamed} without names' if unnamed else 'no rows')}"
    for name, value in reader.where.items():
        if not met[name]:
            raise ReadingError(f"where={reader.where}: no row has {name!r}; {there}")
        if not any(_equals(seen, value) for seen in met[name]) and len(met[name]) < _MOST_SHOWN:
            raise ReadingError(f"where={reader.where}: no row has it; {name!r} is {', '.join(met[name])}")
    those = f" where {reader.where}" if reader.where else ""
    if cells:
        raise ReadingError(f"{key!r} is empty in all rows{those}, {counted(len(cells), 'row')}")
    raise ReadingError(f"no row{those} has {key!r}; {there}")


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _equals(found: object, wanted: object) -> bool:
    if str(found).strip().lower() == str(wanted).lower():
        return True
    one, other = _as_number(found), _as_number(wanted)
    return one is not None and one == other


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if number != number else number


def _position(cells: Sequence[_Cell], reader: Reader) -> list[str]:
    """Names of the epoch and step columns: those with a number in each row that has the value."""
    if reader.step is None:
        return []
    full = [cell for cell in cells if not cell.is_empty]

    def counts(name: str) -> bool:
        return all(_as_number(cell.row.get(name)) is not None for cell in full)

    if reader.step and not counts(reader.step):
        cell = next(cell for cell in full if _as_number(cell.row.get(reader.step)) is None)
        raise ReadingError(f"step={reader.step!r} is no number in the row {cell.value.context}: {cell.value.place}")
    if reader.step:
        return [reader.step]
    [epoch, step] = [next(filter(counts, names), "") for names in (_EPOCHS, _STEPS)]
    if step and any(not float(cell.row[epoch]).is_integer() for cell in full if epoch):
        epoch = ""  # a fraction is computed of the step, which then counts through
    return [name for name in (epoch, step) if name]


def _refuse_mixed(cells: Sequence[_Cell], reader: Reader) -> None:
    for column in _TELL_APART:
        if column in reader.where:
            continue
        met: dict[Position | None, tuple[str, _Cell]] = {}
        for cell in cells:
            if cell.is_empty or column not in cell.row:
                continue
            mine = str(cell.row[column])
            other, first = met.setdefault(cell.at, (mine, cell))
            if other != mine:
                chosen = {**reader.where, column: cell.row[column]}
                raise ReadingError(
                    f"the rows are of several series: {column} is {other} ({first.value.place}), and {mine} "
                    f"({cell.value.place}). Choose one: where={show(chosen)}"
                )


def _last_attempt(cells: Sequence[_Cell], names: Sequence[str]) -> tuple[list[_Cell], str]:
    """Cells without those that a restart repeated, which are the later ones where the step goes back; and a remark."""
    kept: list[_Cell] = []
    last: _Cell | None = None
    restarts, dropped, restart = 0, 0, ""
    for cell in cells:
        now, before = cell.at, last.at if last is not None else None
        if not cell.is_empty and now is not None and before is not None and now < before:
            restarts += 1
            restart = f"{_in_words(names, before)} was followed by {_in_words(names, now)} ({cell.value.place})"
            while kept and ((at := kept[-1].at) is None or at >= now):
                dropped += not kept.pop().is_empty
        kept.append(cell)
        last = last if cell.is_empty else cell
    if not restarts:
        return kept, ""
    return kept, (
        f"{restart}: read as a training that was restarted{f' {restarts} times' if restarts > 1 else ''}, without "
        f"{counted(dropped, 'value')} that it has made again"
    )


def _in_words(names: Sequence[str], at: Position) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in zip(names, at, strict=True))


def _with_nan(cells: Sequence[_Cell]) -> list[_Cell]:
    """The filled cells, and the empty ones that stand for NaN, as pandas writes it.

    A row with a column that is empty in the value's rows logs something else, such as a validation. An empty cell of
    the other rows is NaN if the value was due there: behind the last value, if more of them follow than lie in any gap
    before; behind the first one, if most values follow each other directly.
    """
    always = frozenset.intersection(*(cell.filled for cell in cells if not cell.is_empty))
    own = [cell for cell in cells if not cell.is_empty or cell.filled <= always]
    full = [index for index, cell in enumerate(own) if not cell.is_empty]
    before, *between = [after - index - 1 for index, after in zip([-1, *full], full, strict=False)]
    behind = len(own) - full[-1] - 1
    is_in_every_row = statistics.median_low(between or [before]) == 0
    is_due = is_in_every_row or behind > max([before, *between])
    return [
        cell
        for index, cell in enumerate(own)
        if not cell.is_empty or (is_in_every_row and index > full[0]) or (is_due and index > full[-1])
    ]


def with_points(key: str) -> str:
    """The key ``a[0].b`` written as ``a.0.b``."""
    return re.sub(r"\[(\d+)\]", r".\1", key).removeprefix(".")
