"""The tables that a run may have: a new table is one row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_distbench.errors import TableError, tell
from pytest_distbench.extensions import Table
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.tables.record import ENVIRONMENT, LAUNCHES, RECORD, SETUP
from pytest_distbench.report.tables.table import Section, TableKind
from pytest_distbench.report.tables.verdicts import CONTROL, VERDICTS

TABLES: Table[str, TableKind[Any]] = Table(
    "tables",
    {
        "verdicts": VERDICTS,
        "control": CONTROL,
        "setup": SETUP,
        "record": RECORD,
        "environment": ENVIRONMENT,
        "launches": LAUNCHES,
    },
)
"""By the name that ``--table`` takes."""


def section_of(name: str, record: RunRecord, given: Mapping[str, object] = MappingProxyType({})) -> Section:
    """One table of a run; without rows: the run does not have it.

    Args:
        given: what the user gave beside it, by the names that tables take.

    Raises:
        TableError: it cannot be made.
    """
    try:
        return TABLES[name].section(record.results, {**given, "run": record})
    except Exception as error:
        told = str(error) if isinstance(error, TableError) else tell(error)
        raise TableError(f"the table {name!r} cannot be made: {told}") from error


def sections_of(
    record: RunRecord, given: Mapping[str, object] = MappingProxyType({})
) -> tuple[dict[str, Section], list[TableError]]:
    """The tables that a run has, those with a row; and what is wrong with those that cannot be made."""
    sections, errors = {}, []
    for name in TABLES:
        try:
            if (section := section_of(name, record, given)).rows:
                sections[name] = section
        except TableError as error:
            errors.append(error)
    return sections, errors
