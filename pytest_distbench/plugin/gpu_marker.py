"""The marker ``gpu``: which GPUs a test needs, held against those that a run was given."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.wanted import Wanted, one_of
from pytest_distbench.units import as_int, format_quantity, parse_bytes

if TYPE_CHECKING:
    import pytest

    from pytest_distbench.machine.gpus import Gpus

LINKS = {"nvlink": "NVLink", "p2p": "peer access"}
"""What may be wanted between any two GPUs of a test: ``p2p`` is NVLink, or PCIe with peer access."""

TOLD_SHARE = 0.93
"""Of the memory a product is sold with, the least that its driver tells: ECC takes a sixteenth where it is kept in the
same memory (A10, L40S, T4: 15 GiB of 16), firmware and tables take the rest (H100: 79.65 GiB of 80)."""

_LEAST_MEMORY = 2**20
"""Fewer bytes are a number without its unit."""

_CAPABILITY = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeed:
    """What each GPU of a test must have: compute capability (major, minor), link by its key in :data:`LINKS`.

    Bytes of memory are as products are sold: :data:`TOLD_SHARE` of them is enough.
    """

    min_memory: int = 0
    capability: tuple[int, int] = (0, 0)
    link: str = ""

    def obstacle(self, gpus: Gpus, ranks: int) -> str:
        """Why the first so many GPUs will not do; empty: they do. What the driver does not tell will not do."""
        chosen = gpus.visible[:ranks]
        for gpu in chosen:
            if self.min_memory and (gpu.memory_bytes is None or gpu.memory_bytes < TOLD_SHARE * self.min_memory):
                found = "does not tell" if gpu.memory_bytes is None else f"has {format_quantity(gpu.memory_bytes, 'B')}"
                return f"not run: needs GPUs with {format_quantity(self.min_memory, 'B')}; {gpu.label} {found}"
            if self.capability > (_parse(gpu.capability) or (0, 0)):
                wanted = ".".join(map(str, self.capability))
                return f"not run: needs compute capability {wanted}; {gpu.label} has {gpu.capability or 'none known'}"
        for a, first in enumerate(chosen):
            for b, second in enumerate(chosen[:a]):
                link = gpus.links[a][b] if a < len(gpus.links) else ""
                if self.link and not (link.startswith("nvlink") or (self.link == "p2p" and "-p2p" in link)):
                    return (
                        f"not run: needs {LINKS[self.link]} between its GPUs; "
                        f"{second.label} and {first.label} have {link or 'no link that is known'}"
                    )
        return ""


def gpu_need(markers: Iterable[pytest.Mark]) -> GpuNeed:
    """What the ``gpu`` markers of a test ask for; of several, the closest one wins keyword by keyword."""
    options: dict[str, object] = {}
    for mark in markers:
        if mark.name == "gpu":
            options = {**mark.kwargs, **options}
    given = {
        name: wanted(f"@pytest.mark.gpu: {name}", options[name])
        for name, wanted in WANTED.items()
        if options.get(name) is not None
    }
    return GpuNeed(**given)


def _memory(value: object) -> int | None:
    found = as_int(value)
    if isinstance(value, str):
        with contextlib.suppress(ConfigurationError):
            found = parse_bytes(value)
    return found if found is not None and found >= _LEAST_MEMORY else None


def _parse(text: str) -> tuple[int, int] | None:
    found = _CAPABILITY.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


WANTED: dict[str, Wanted[Any]] = {
    "min_memory": Wanted("a size such as '40GiB', or at least 1048576 bytes", _memory),
    "capability": Wanted("a text such as '9.0'", lambda value: _parse(value) if isinstance(value, str) else None),
    "link": one_of(LINKS),
}
