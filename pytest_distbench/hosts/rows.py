"""A test's choice of network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.hosts.extension import read_text
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.plugin.settings import Choice

if TYPE_CHECKING:
    from pytest_distbench.plugin.arguments import Arguments, Called
    from pytest_distbench.run.request import Settings


def network_of_marker(mark: pytest.Mark) -> str:
    from pytest_distbench.hosts.network import make_network

    if len(mark.args) == 1 and isinstance(mark.args[0], str) and not mark.kwargs:
        return read_text(mark.args[0])
    given = [*map(show, mark.args), *(f"{name}={show(value)}" for name, value in mark.kwargs.items())]
    rate: Any = mark.args[0] if len(mark.args) == 1 else mark.args or ""
    return make_network(rate, mark.kwargs, written=", ".join(given) or "without arguments").text


def choose_network(given: Arguments, settings: Settings, wanted: Called, ranks: int, by_marker: str) -> str:
    """The network between a call's ranks that the call, its test's marker or the run asks for, or "" if none does.

    Skips the test if that network cannot be emulated here; a label of an existing one can always be given. Fails the
    test if it asks for a network and the plugin does not start its ranks.
    """
    from pytest_distbench.hosts.network import VARIABLES, parse_network, rank_hosts
    from pytest_distbench.run.kinds import kind_of

    assert wanted.work is not None
    if not isinstance(wanted.network, str | None):
        given.refuse(f"network={show(wanted.network)}; wanted a text, as in '1gbit,delay=1ms'")
    try:
        asked = by_marker if wanted.network is None else read_text(wanted.network)
        text = asked or settings.added.get("network", "")
        network = parse_network(text) if text else None
        if network is None or network.label:
            return text
        kind = kind_of(wanted.work)
        if why := kind.why_no_ranks:
            needs = f"the network {text} needs ranks that the plugin starts, and {why}"
            if asked:
                given.refuse(needs)
            pytest.skip(f"not run: {needs}")
        if settings.fake_rank is not None:
            return ""  # structure alone is judged, and the ranks send nothing
        if kind.hosted_by(LAUNCHERS[settings.launcher]).hosts == "many":
            pytest.skip(
                f"not run: the network {text} is simulated between ranks of this host, and {settings.launcher} "
                f"starts them on others: name their network with --distbench-network label=NAME"
            )
        rank_hosts(network, ranks)
    except ConfigurationError as error:
        given.refuse(str(error))
    if set_by_both := [name for name in VARIABLES if name in wanted.own_variables]:
        given.refuse(f"env sets {set_by_both[0]}, which the network {text} sets in each rank itself")
    return text


CHOICE = Choice(of_marker=network_of_marker, find=choose_network)
