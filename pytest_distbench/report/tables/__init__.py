"""The tables that a run may have: a new table is one row."""

from __future__ import annotations

from typing import Any

from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.tables.accuracy import ACCURACY
from pytest_distbench.report.tables.buckets import BUCKETS
from pytest_distbench.report.tables.collectives import COLLECTIVES
from pytest_distbench.report.tables.control import CONTROL
from pytest_distbench.report.tables.cycle import CYCLE
from pytest_distbench.report.tables.elastic import EPOCHS, EVENTS, JOBS, RATES, WORKERS
from pytest_distbench.report.tables.growth import GROWTH
from pytest_distbench.report.tables.launches import ENVIRONMENT, LAUNCHES
from pytest_distbench.report.tables.links import LINK_MATRIX, LINKS
from pytest_distbench.report.tables.pool import POOLS, SERVINGS
from pytest_distbench.report.tables.table import Section, TableKind
from pytest_distbench.report.tables.verdicts import VERDICTS

TABLES: dict[str, TableKind[Any]] = {
    "verdicts": VERDICTS,
    "collectives": COLLECTIVES,
    "control": CONTROL,
    "growth": GROWTH,
    "buckets": BUCKETS,
    "links": LINKS,
    "link_matrix": LINK_MATRIX,
    "environment": ENVIRONMENT,
    "launches": LAUNCHES,
    "elastic": JOBS,
    "cycle": CYCLE,
    "epochs": EPOCHS,
    "events": EVENTS,
    "workers": WORKERS,
    "learning_rate": RATES,
    "accuracy": ACCURACY,
    "pool": POOLS,
    "serving": SERVINGS,
}
"""By the name that ``--table`` takes."""


def sections_of(record: RunRecord) -> dict[str, Section]:
    """The tables that a run has: those with a row."""
    made = {name: kind.section(record.results) for name, kind in TABLES.items()}
    return {name: section for name, section in made.items() if section.rows}
