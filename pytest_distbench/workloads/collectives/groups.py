"""Groups: which ranks make a call, and which make one of their own at the same time. A row each, without torch."""

from __future__ import annotations

from collections.abc import Callable

from pytest_distbench.errors import ConfigurationError, show

_GROUPS: dict[str, Callable[[int], list[range]]] = {
    "all": lambda n: [range(n)],
    "half": lambda n: [range(n // 2)],
    "halves": lambda n: [range(n // 2), range(n // 2, n // 2 * 2)],
}
"""By name, from the world size: the groups that call at the same time. The other ranks look on."""


def groups_of(name: str | int, world_size: int) -> list[tuple[int, ...]]:
    """The ranks of each group.

    Args:
        name: ``all``, ``half`` (the first ranks, the others idle), ``halves`` (both at once), or a number of ranks.
        world_size: ranks at hand.

    Raises:
        ConfigurationError: no such group, or it has fewer than two ranks.
    """
    if isinstance(name, int) and not isinstance(name, bool):
        found = [range(min(name, world_size))]
        if not 2 <= name <= world_size:
            raise ConfigurationError(f"group={name}: wanted 2 to {world_size} ranks, the world size")
    elif isinstance(name, str) and name in _GROUPS:
        found = _GROUPS[name](world_size)
    else:
        raise ConfigurationError(f"group={show(name)}: wanted one of {', '.join(_GROUPS)}, or a number of ranks")
    if name != "all" and min(map(len, found)) < 2:
        raise ConfigurationError(f"group={name!r} of {world_size} ranks is one rank: it needs 4 ranks, --world-size 4")
    return [tuple(group) for group in found]
