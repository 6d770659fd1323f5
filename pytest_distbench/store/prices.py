"""The price list that ``distbench report --prices`` takes: a TOML file of the user's; docs/cost.md has one."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from pytest_distbench.records.prices import TERMS, Machine, Prices, Term
from pytest_distbench.records.wanted import Wanted, number, one_of, text, whole
from pytest_distbench.store.toml_file import TomlTable, read_toml

_NEXT_STEP = "docs/cost.md has a price list to start from"

_CURRENCY = Wanted(
    "a currency in three capital letters, such as USD",
    lambda value: value if isinstance(value, str) and re.fullmatch(r"[A-Z]{3}", value) else None,
)
_DATE = Wanted(
    "the day on which the prices were read, such as 2020-10-05, without quotes, and no later one than today",
    lambda value: value if type(value) is datetime.date and value <= _tomorrow() else None,  # no datetime, which is one
)


def _tomorrow() -> datetime.date:
    """It is today already where the day begins earlier than here."""
    return datetime.datetime.now(tz=datetime.UTC).date() + datetime.timedelta(days=1)


_UNIT = one_of(["hour"])
_PRICE = number(least=0)
_RANKS = whole(1)
_NO_ACCELERATOR: Wanted[str] = Wanted("nothing, as there is no table [accelerator.NAME]", lambda _: None)


def _platforms(value: object) -> list[str] | None:
    is_list = isinstance(value, list) and value and all(isinstance(name, str) and name for name in value)
    return list(value) if is_list else None  # type: ignore[call-overload] # it is one


_PLATFORMS = Wanted('a list of hardware classes, such as ["cpu-intel-*"]', _platforms)


def read_prices(path: Path) -> Prices:
    """Read a price list, strictly.

    Raises:
        StoredFileError: there is no such file, or it is none; the message has file, key, what was wanted and found.
    """
    table = read_toml(path, next_step=_NEXT_STEP)
    currency, day, source = table.take("currency", _CURRENCY), table.take("date", _DATE), table.take("source", text())
    table.take("per", _UNIT)
    accelerators = {name: _prices(inner) for name, inner in table.tables("accelerator")}
    machines = [_machine(name, inner, accelerators) for name, inner in table.tables("machine")]
    if not machines:
        table.refuse("machine", "at least one table [machine.NAME]", "none")
    table.end()
    return Prices(currency=currency, date=day, source=source, machines=machines)


def _prices(table: TomlTable, *, ends: bool = True) -> dict[Term, float]:
    found: dict[Term, float] = {term: price for term in TERMS if (price := table.take_if(term, _PRICE)) is not None}
    if not found:
        table.refuse(TERMS[0], f"a price, {' or '.join(TERMS)}, as {_PRICE.words}", "neither")
    if ends:
        table.end()
    return found


def _machine(name: str, table: TomlTable, accelerators: dict[str, dict[Term, float]]) -> Machine:
    per_hour = _prices(table, ends=False)
    ranks = table.take("ranks_per_node", _RANKS)
    platforms = table.take_if("platforms", _PLATFORMS) or ["*"]
    accelerator = table.take_if("accelerator", one_of(accelerators) if accelerators else _NO_ACCELERATOR)
    each = table.take_if("accelerators_per_node", _RANKS)
    table.end()
    if (accelerator is None) != (each is None):
        lacking = "accelerator" if accelerator is None else "accelerators_per_node"
        table.refuse(lacking, "accelerator and accelerators_per_node together", "nothing")
    if accelerator is not None and each is not None:
        prices = accelerators[accelerator]
        if not (shared := [term for term in per_hour if term in prices]):
            table.refuse(
                "accelerator", f"one with a price that is {' or '.join(per_hour)}, as the machine's", accelerator
            )
        per_hour = {term: per_hour[term] + each * prices[term] for term in shared}
    return Machine(name=name, per_hour=per_hour, ranks_per_node=ranks, platforms=platforms)
