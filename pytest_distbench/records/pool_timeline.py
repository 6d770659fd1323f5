"""The timeline of a pool: who has which slot, and what became of each request. Each job has a timeline of its own.

Written and read as that of a job (``records/timeline.py``), by the pool's controller, the replicas and what sends
requests.
"""

from __future__ import annotations

import msgspec

from pytest_distbench.records.record import Record


class _Line(Record, frozen=True, kw_only=True, tag_field="what"):
    t: float


class ClockBegan(_Line, frozen=True, kw_only=True, tag="clock_began"):
    """The first job has taken its first step: what is said in seconds counts from here."""


class Submitted(_Line, frozen=True, kw_only=True, tag="submitted"):
    """A job asks for slots."""

    job: str


class Granted(_Line, frozen=True, kw_only=True, tag="granted"):
    """A slot is somebody's."""

    owner: str
    slot: int


class Asked(_Line, frozen=True, kw_only=True, tag="asked"):
    """Somebody is asked to give a slot back."""

    owner: str
    slot: int


class Freed(_Line, frozen=True, kw_only=True, tag="freed"):
    """All that its owner ran in a slot has ended."""

    owner: str
    slot: int


class Ended(_Line, frozen=True, kw_only=True, tag="ended"):
    """A job has finished, and all its slots are free."""

    job: str


class Demanded(_Line, frozen=True, kw_only=True, tag="demanded"):
    """The demand is another from now on."""

    per_s: float
    replicas: int


class ReplicaReady(_Line, frozen=True, kw_only=True, tag="replica_ready"):
    """A replica answers."""

    slot: int
    pid: int
    port: int


class ReplicaFailed(_Line, frozen=True, kw_only=True, tag="replica_failed"):
    """What loads the model, or answers, has raised."""

    slot: int
    error: str


class Answered(_Line, frozen=True, kw_only=True, tag="answered"):
    """A request has its answer."""

    number: int
    intended_t: float
    """When it was due: what it waited before it was sent counts."""
    slot: int
    busy_s: float
    """That the replica computed."""


PoolLine = ClockBegan | Submitted | Granted | Asked | Freed | Ended | Demanded | ReplicaReady | ReplicaFailed | Answered

POOL_LINES: msgspec.json.Decoder[PoolLine] = msgspec.json.Decoder(PoolLine)
"""Reads them."""
