"""Whether a run has room for what a test wants: ranks, nodes or slots, and a CPU quota for each."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.starters.table import LAUNCHERS
from pytest_distbench.machine import hardware
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.records.network import Network, rank_hosts
from pytest_distbench.records.options import FAKE
from pytest_distbench.records.work import Work
from pytest_distbench.run.kinds import kind_of
from pytest_distbench.run.settings import Settings

MOST_RANKS_PER_CORE = 32

LEAST_CPUS = 0.01
"""The least of docker's ``--cpus``."""


def most_ranks(launcher: str) -> tuple[int, str]:
    """How many ranks a launch on this host may have, and why no more."""
    cores, starts = hardware.cores(), LAUNCHERS[launcher].most_ranks
    most = MOST_RANKS_PER_CORE * cores
    if starts is not None and starts < most:
        return starts, f"the launcher {launcher} starts no more"
    return most, f"{MOST_RANKS_PER_CORE} a core, of {cores}"


def check_room(given: Arguments, settings: Settings, wanted: int, what: str, *, oversubscribed: object) -> int | None:
    """Skip the test where it wants more than this run was given, and does not say that it may be oversubscribed.

    Of GPUs each rank has its own, whatever the test says.

    Args:
        given: refuses the argument.
        settings: of the run.
        wanted: how many.
        what: ``ranks``, ``nodes`` or ``slots``.
        oversubscribed: as the test has it.

    Returns:
        The cores of this host, where they are fewer than what is wanted, and the test has asked for that; else None.
    """
    given.yes_or_no("oversubscribed", oversubscribed)
    if wanted <= settings.largest:
        return None
    if not oversubscribed or settings.gpu:
        there_are = f"{settings.largest} given" if what == "ranks" else f"{settings.largest} ranks given"
        pytest.skip(f"not run: needs {wanted} {what}, {there_are}")
    most, why = most_ranks(settings.launcher)
    if what == "ranks" and wanted > most:
        given.refuse(f"{wanted} ranks; at most {most} can run here ({why})")
    return hardware.cores() if wanted > hardware.cores() else None


def find_quota(given: Arguments, settings: Settings, work: Work, cpus: object) -> float | None:
    """``cpus=`` of a call, the CPU quota of each rank; None: it has none.

    Refused is what has no ranks of ours, and a test is skipped where they are out of reach.
    """
    if cpus is None:
        return None
    cores = hardware.cores()
    found = given.number("cpus", cpus, least=LEAST_CPUS, most=cores)
    kind = kind_of(work)
    if kind.why_no_ranks:
        given.refuse(f"cpus={found:g} needs ranks of ours, and {kind.why_no_ranks}")
    if settings.fake_rank is not None:
        pytest.skip(f"not run: a CPU quota changes clocks, and the {FAKE} backend has none")
    if kind.hosted_by(LAUNCHERS[settings.launcher]).hosts == "many":
        pytest.skip(f"not run: a CPU quota needs ranks on this host, and those of {settings.launcher} are on others")
    return found


def find_network(
    given: Arguments, settings: Settings, work: Work, wanted: Network | None, ranks: int
) -> Network | None:
    """The network between the ranks of a call: that it asks for, its test, or the run; None: whatever there is.

    A test is skipped where none can be made for it; the name of one that is there is that of every launch. Refused is
    one that was asked for what has no ranks of ours.
    """
    network = wanted or settings.network
    if network is None or network.label:
        return network
    kind = kind_of(work)
    if why := kind.why_no_ranks:
        needs = f"the network {network.text} needs ranks of ours, and {why}"
        if wanted is not None:
            given.refuse(needs)
        pytest.skip(f"not run: {needs}")
    if settings.fake_rank is not None:
        return None  # structure alone is judged, and the ranks send nothing
    if kind.hosted_by(LAUNCHERS[settings.launcher]).hosts == "many":
        pytest.skip(
            f"not run: the network {network.text} is made between ranks of this host, and those of "
            f"{settings.launcher} are on others: name theirs with --distbench-network label=NAME"
        )
    try:
        rank_hosts(network, ranks)
    except ConfigurationError as error:
        given.refuse(str(error))
    return network
