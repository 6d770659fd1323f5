"""The table of transports: names, variables and collectives that there are."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.options import BACKENDS
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.transports import TRANSPORTS, transport_of


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_transport_is_of_known_backends_and_collectives_and_sets_what_no_other_sets(name: str) -> None:
    row = transport_of(name)

    assert set(row.variables) <= set(BACKENDS)
    assert set(row.collectives) <= set(OPERATIONS)
    assert all(row.variables.values())
    assert all(row.variables != other.variables for key, other in TRANSPORTS.items() if key != name)


def test_an_unknown_one_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="unknown transport 'star': known are ring, tree"):
        transport_of("star")
