"""The marker ``network``: the network between the ranks of a test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_distbench.errors import ConfigurationError, show

if TYPE_CHECKING:
    import pytest

    from pytest_distbench.records.network import Network

NETWORK_KEYWORDS = ("delay", "loss", "overlay", "hosts", "label")


def network_of(markers: Iterable[pytest.Mark]) -> Network | None:
    """The network that the closest of the markers asks for; None: none does.

    Raises:
        ConfigurationError: it is none; the message says what is wanted.
    """
    mark = next((mark for mark in markers if mark.name == "network"), None)
    return None if mark is None else _read(mark)


def _read(mark: pytest.Mark) -> Network:
    """By keywords, or all in one text as the option has it."""
    from pytest_distbench.records.network import make_network, parse_network  # late: few tests have one

    given = [*map(show, mark.args), *(f"{name}={show(value)}" for name, value in mark.kwargs.items())]
    told = ", ".join(given) or "without arguments"
    try:
        if len(mark.args) == 1 and isinstance(mark.args[0], str) and not mark.kwargs:
            return parse_network(mark.args[0])
        rate = mark.args[0] if len(mark.args) == 1 else mark.args or ""
        return make_network(rate, mark.kwargs, told=told)
    except ConfigurationError as error:
        raise ConfigurationError(f"@pytest.mark.network: {error}") from None
