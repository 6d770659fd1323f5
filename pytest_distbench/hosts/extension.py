"""Rows that ranks on other hosts, and chosen networks, add to the tables of the core."""

from __future__ import annotations

from pytest_distbench.records.options import ADVANCED, Option
from pytest_distbench.records.wanted import Wanted

ROWS = {
    "launchers": {"slurm": "launchers:SLURM", "cmd": "launchers:CMD"},
    "options": {"network": "extension:OPTION"},
    "markers": {"network": "extension:MARKER"},
    "choices": {"network": "rows:CHOICE"},
    "around": {"network": "network:NetworkAround"},
}


def read_text(text: str) -> str:
    """A network's description in the form that options and names of cases have: ``1gbit,delay=1ms``."""
    from pytest_distbench.hosts.network import parse_network

    return parse_network(text).text


OPTION = Option(
    "network between the ranks, such as 1gbit,delay=5ms",
    "Emulated on this host, from a rate, delay=, loss=, overlay and hosts=; label=NAME names the network that is "
    "there.",
    metavar="NETWORK",
    wanted=Wanted("a network", read_text),
    name="network",
    group=ADVANCED,
    default="",
)
MARKER = "(rate, delay=, loss=, overlay=, hosts=, label=): the network between the ranks of this test"
