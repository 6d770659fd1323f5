"""The collective operations a sweep can measure: a row of the table each."""

from __future__ import annotations

from pytest_distbench.errors import look_up
from pytest_distbench.workloads.collectives import rows
from pytest_distbench.workloads.collectives.operation import Buffers, Counts, Form, Operation

__all__ = ["OPERATIONS", "Buffers", "Counts", "Form", "Operation", "operation"]

OPERATIONS = {
    row.name: row
    for row in (
        rows.ALL_REDUCE,
        rows.ALL_GATHER,
        rows.REDUCE_SCATTER,
        rows.BROADCAST,
        rows.REDUCE,
        rows.GATHER,
        rows.SCATTER,
        rows.ALL_TO_ALL,
        rows.ALL_TO_ALL_V,
        rows.SEND_RECV,
        rows.BARRIER,
    )
}
"""By torch name."""


def operation(name: str) -> Operation:
    """Look an operation up by its torch name."""
    hint = "; one of your own is named by file and row, as 'my_operations.py::BROADCAST'"
    return look_up(OPERATIONS, name, "collective", hint=hint)
