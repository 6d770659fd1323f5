"""Whether a run has room for what a test wants: ranks, nodes or slots."""

from __future__ import annotations

import pytest

from pytest_distbench.machine import hardware
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.run.settings import Settings


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
    return hardware.cores() if wanted > hardware.cores() else None
