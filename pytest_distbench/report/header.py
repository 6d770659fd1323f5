"""The lines before the first test: what is measured on what, and against which baselines."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.installation import __version__
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.environment import Environment
from pytest_distbench.store.baselines import BaselineStore


def header_lines(
    environment: Environment,
    store: BaselineStore,
    *,
    world_sizes: Sequence[int],
    gpus: Gpus,
    backend: str,
    launcher: str,
    update: str,
    against: str,
) -> list[str]:
    """Two lines; one more in an update, and where GPUs are missing that the machine has.

    No GPU is visible to a CPU run; ``update`` and ``against`` may be empty.
    """
    sizes = ", ".join(map(str, world_sizes))
    count = len(gpus.visible)
    devices = f"{count} GPU{'s' * (count != 1)}" if count else f"{environment.cores} CPU cores"
    entries = sum(1 for _ in store.files())
    torch = environment.software["torch"]
    where = f"{backend}, {devices} ({environment.device}), torch {torch}, {launcher} launcher"
    first = f"distbench {__version__}: world size {sizes}, {where}"
    missing = [f"distbench: not used: {reason}" for reason in gpus.unreadable]
    if against:
        return [first, *missing, f"distbench: against {against}, in turns; stored baselines are not read"]
    lines = [
        first,
        *missing,
        f"distbench: baselines {store.folder / store.platform} ({entries} {'entry' if entries == 1 else 'entries'})",
    ]
    if update:
        lines.append(f"distbench: update={update}; baselines will be written")
    return lines
