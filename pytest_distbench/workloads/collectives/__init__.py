"""The collective operations a sweep can measure: a row of the table each."""

from __future__ import annotations

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.collectives.all_gather import ALL_GATHER
from pytest_distbench.workloads.collectives.all_reduce import ALL_REDUCE
from pytest_distbench.workloads.collectives.all_to_all import ALL_TO_ALL
from pytest_distbench.workloads.collectives.all_to_all_v import ALL_TO_ALL_V
from pytest_distbench.workloads.collectives.barrier import BARRIER
from pytest_distbench.workloads.collectives.broadcast import BROADCAST
from pytest_distbench.workloads.collectives.form import Form
from pytest_distbench.workloads.collectives.gather import GATHER
from pytest_distbench.workloads.collectives.operation import Buffers, Counts, Operation
from pytest_distbench.workloads.collectives.reduce import REDUCE
from pytest_distbench.workloads.collectives.reduce_scatter import REDUCE_SCATTER
from pytest_distbench.workloads.collectives.scatter import SCATTER
from pytest_distbench.workloads.collectives.send_recv import SEND_RECV

__all__ = ["OPERATIONS", "Buffers", "Counts", "Form", "Operation", "operation"]

OPERATIONS = {
    row.name: row
    for row in (
        ALL_REDUCE,
        ALL_GATHER,
        REDUCE_SCATTER,
        BROADCAST,
        REDUCE,
        GATHER,
        SCATTER,
        ALL_TO_ALL,
        ALL_TO_ALL_V,
        SEND_RECV,
        BARRIER,
    )
}
"""By torch name."""


def operation(name: str) -> Operation:
    """Look an operation up by its torch name.

    Raises:
        ConfigurationError: no such operation; the message lists those there are.
    """
    if name not in OPERATIONS:
        raise ConfigurationError(
            f"unknown collective {name!r}: known are {', '.join(sorted(OPERATIONS))}; "
            "one of your own is named by file and row, as 'my_operations.py::BROADCAST'"
        )
    return OPERATIONS[name]
