"""The lines before the first test: what is measured on what, and against which baselines."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.environment import Environment
from pytest_distbench.releases import __version__
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.estimate import Estimate


def duration_text(found: Estimate, *, long_forms: int) -> str:
    """How long the run will take, and what long forms are left out; empty where there is nothing to tell."""
    left = f"{long_forms} long form{'s are' if long_forms != 1 else ' is'} left out (--distbench-full)"
    told = [left] if long_forms else []
    count = f"{found.tests} test{'s' * (found.tests != 1)}"
    if found.seconds is not None:
        told.insert(0, f"{count}, about {about(found.seconds)}")
        if found.elsewhere:
            told[0] += ", as on other machines"
        if found.unknown:
            told[0] += f"; {found.unknown} of them new or renamed, and taken for as long as the others"
    elif found.unknown:
        told.insert(0, f"{count}; how long they take is known after their first run")
    return "; ".join(told)


def about(seconds: float) -> str:
    """A duration nobody knows exactly: ``40 s``, ``2.5 min``, ``12 min``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 5 else f"{minutes:.1f} min"


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
    control: str = "",
    duration: str = "",
) -> list[str]:
    """Two lines; one more in an update, where GPUs are missing that the machine has, and where the host is shared.

    No GPU is visible to a CPU run; ``update``, ``against``, ``control`` and ``duration`` may be empty.
    """
    sizes = ", ".join(map(str, world_sizes))
    count = len(gpus.visible)
    devices = f"{count} GPU{'s' * (count != 1)}" if count else f"{environment.cores} CPU cores"
    entries = sum(1 for _ in store.files())
    torch = environment.software["torch"]
    where = f"{backend}, {devices} ({environment.device}), torch {torch}, {launcher} launcher"
    first = f"distbench {__version__}: world size {sizes}, {where}"
    missing = [f"distbench: not used: {reason}" for reason in gpus.unreadable]
    missing += [f"distbench: note: {remark}" for remark in gpus.remarks]
    if environment.shares_host:
        missing.append("distbench: note: the host is shared (--distbench-share-host): CPU clocks are others' too")
    compared = f"baselines {store.folder / store.platform} ({entries} {'entry' if entries == 1 else 'entries'})"
    if against:
        compared = f"against {against}, in turns; nothing is compared with stored baselines"
    if control:
        compared += f"; a slowdown is planted in every case ({control}): nothing is judged or stored"
    lines = [first, *missing, f"distbench: {compared}"]
    if duration:
        lines.append(f"distbench: {duration}")
    if update:
        lines.append(f"distbench: update={update}; baselines will be written")
    return lines
