"""The tables that a run may have: a new table is one row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_distbench.errors import TableError, tell
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.tables.collectives import BACKENDS, COLLECTIVES, NETWORKS, TRANSPORTS
from pytest_distbench.report.tables.communication import BUCKETS, GROWTH, LINKS
from pytest_distbench.report.tables.cost import COST
from pytest_distbench.report.tables.elastic import EVENTS, JOBS, POOLS, SERVINGS
from pytest_distbench.report.tables.epochs import ACCURACY, EPOCHS, FINAL_ACCURACY
from pytest_distbench.report.tables.phases import PHASES
from pytest_distbench.report.tables.record import ENVIRONMENT, LAUNCHES, RECORD, SETUP
from pytest_distbench.report.tables.scaling import SCALING
from pytest_distbench.report.tables.table import Section, TableKind
from pytest_distbench.report.tables.verdicts import CONTROL, VERDICTS

TABLES: dict[str, TableKind[Any]] = {
    "verdicts": VERDICTS,
    "collectives": COLLECTIVES,
    "backends": BACKENDS,
    "transports": TRANSPORTS,
    "networks": NETWORKS,
    "control": CONTROL,
    "scaling": SCALING,
    "phases": PHASES,
    "growth": GROWTH,
    "buckets": BUCKETS,
    "cost": COST,
    "links": LINKS,
    "setup": SETUP,
    "record": RECORD,
    "environment": ENVIRONMENT,
    "launches": LAUNCHES,
    "elastic": JOBS,
    "epochs": EPOCHS,
    "events": EVENTS,
    "accuracy": ACCURACY,
    "final_accuracy": FINAL_ACCURACY,
    "pool": POOLS,
    "serving": SERVINGS,
}
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
