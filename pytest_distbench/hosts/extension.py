"""What ranks on other hosts, and chosen networks, add to the core's tables."""

from __future__ import annotations

from pytest_distbench.launch.starters import LauncherKind, by_name
from pytest_distbench.records.options import ADVANCED, Option
from pytest_distbench.records.wanted import Wanted

ROWS = {
    "launchers": {"slurm": "extension:SLURM", "cmd": "extension:CMD"},
    "options": {"network": "extension:OPTION"},
    "markers": {"network": "extension:MARKER"},
    "choices": {"network": "rows:CHOICE"},
    "around": {"network": "network:NetworkAround"},
}


def read_text(text: str) -> str:
    """A network as options and names of cases have it."""
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

SLURM = LauncherKind(
    help="on the nodes of a Slurm allocation, from processes that have torch loaded",
    make=by_name("pytest_distbench.hosts.slurm:SlurmLauncher"),
    starts="started by Slurm",
    hosts="many",
    holds_two=True,
    is_spaced=False,
    sets_threads=True,
    describe=by_name("pytest_distbench.hosts.slurm:describe"),
    layout=by_name("pytest_distbench.hosts.slurm:ranks_of_nodes"),
)
CMD = LauncherKind(
    help="a command of your own that reaches other hosts",
    make=by_name("pytest_distbench.hosts.calls:CmdLauncher"),
    starts="started by a command of yours",
    hosts="many",
    holds_two=True,
    may_confirm=False,
    takes_python=False,
    is_spaced=False,
    describe=by_name("pytest_distbench.hosts.calls:describe"),
    layout=by_name("pytest_distbench.hosts.calls:ranks_of_nodes"),
    engine=by_name("pytest_distbench.hosts.calls:check_engine"),
)
