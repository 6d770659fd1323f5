"""Everything a run measured and said."""

from __future__ import annotations

from typing import Literal

from pytest_distbench.records.case import Case, EntryName
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import Record
from pytest_distbench.records.verdict import Verdict


class CaseResult(Record, frozen=True, kw_only=True):
    """Everything measured and said about one case in this run."""

    nodeid: str
    case: Case
    environment: Environment
    launches: list[LaunchRecord]
    verdicts: list[Verdict]
    baseline_path: str = ""
    baseline_software: dict[str, str] = {}
    baseline_peak_memory_bytes: int | None = None
    baseline_phases: dict[str, float] = {}
    update: Literal["", "new", "changed", "kept", "refused"] = ""
    previous: dict[str, float | None] = {}
    """Old baseline values of the metrics an update rewrote; None where there was none."""
    xfail_perf: str = ""
    """Why a regression is expected: the marker's reason, or the baseline's; empty: it is not."""
    against: str = ""
    """What the launches were compared with instead of a stored baseline: ``main (3f2a91c0d4)``."""
    reference_launches: list[LaunchRecord] = []
    """Its launches; each ran in turns with the one of the same index in ``launches``."""


class RunRecord(Record, frozen=True, kw_only=True):
    """The file ``--distbench-json`` writes."""

    schema: int
    distbench: str
    """Version of this package."""
    started: str
    """UTC, ISO 8601."""
    duration_s: float
    world_sizes: list[int]
    gpu: bool
    results: list[CaseResult]
    unused: list[EntryName] | None = None
    """Stored entries that no test used. None: the run was not whole or not green, so nobody knows."""
