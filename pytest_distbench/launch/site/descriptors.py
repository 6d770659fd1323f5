"""Whether processes may have as many files open as a launch needs, which a connection counts as."""

from __future__ import annotations

import resource

from pytest_distbench.errors import LauncherError

_BESIDES = 64
"""What a process has open besides: libraries, logs, the sockets of its own line."""
_OF_A_RANK = 2
"""Of each other rank a rank may hold: one of gloo's group, and in rank 0, which keeps the store, that of its client."""


def check_ranks(ranks: int) -> None:
    """Refuse a launch whose ranks, on this host, may not hold what they need of each other."""
    _check(_OF_A_RANK * ranks, f"a rank of {ranks:,}")


def check_calls(hosts: int) -> None:
    """Refuse a launch on more hosts than this process may have connections to."""
    _check(hosts, f"pytest, with ranks on {hosts:,} hosts,")


def _check(needed: int, who: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed + _BESIDES:
        most = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        raise LauncherError(
            f"{who} has up to {needed + _BESIDES:,} files and connections open, and may have {soft:,} on this host: "
            f"ulimit -n {needed + _BESIDES} before it is started (without root up to {most})"
        )
