"""The lines before the first test: what is measured on what, and against which baselines."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.installation import __version__
from pytest_distbench.records.environment import Environment
from pytest_distbench.store.baselines import BaselineStore


def header_lines(
    environment: Environment,
    store: BaselineStore,
    *,
    world_sizes: Sequence[int],
    num_gpus: int,
    backend: str,
    launcher: str,
    update: str,
    against: str,
) -> list[str]:
    """Two lines; three in an update. ``num_gpus`` is 0 for a CPU run, ``update`` and ``against`` may be empty."""
    sizes = ", ".join(map(str, world_sizes))
    devices = f"{num_gpus} GPUs" if num_gpus else f"{environment.cores} CPU cores"
    entries = sum(1 for _ in store.files())
    torch = environment.software["torch"]
    where = f"{backend}, {devices} ({environment.device}), torch {torch}, {launcher} launcher"
    first = f"distbench {__version__}: world size {sizes}, {where}"
    if against:
        return [first, f"distbench: against {against}, in turns; stored baselines are not read"]
    lines = [
        first,
        f"distbench: baselines {store.folder / store.platform} ({entries} {'entry' if entries == 1 else 'entries'})",
    ]
    if update:
        lines.append(f"distbench: update={update}; baselines will be written")
    return lines
