"""One measured point, and what its stored entry is known by."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pytest_distbench.records.record import Record


class Case(Record, frozen=True, kw_only=True):
    """One measured point: a test with its parameters, on one kind of process group."""

    test: str
    """Path and function, without parameters: ``suites/collectives/test_all_reduce.py::test_all_reduce``."""
    case_id: str
    """The bracketed part of the node id, for example ``float32-ws2``."""
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    launcher: str
    params: dict[str, Any] = {}

    @property
    def entry_key(self) -> str:
        """Key of this case inside its baseline file."""
        return f"{self.case_id}.{self.backend}.{self.launcher}"

    @property
    def workload(self) -> str:
        """Short hash of the parameters: a baseline with another hash measured something else."""
        text = json.dumps([self.world_size, self.device, self.params], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class EntryName(Record, frozen=True, kw_only=True, order=True):
    """What a stored entry is known by."""

    platform: str
    test: str
    key: str

    def __str__(self) -> str:
        return f"{self.test}[{self.key}]"
