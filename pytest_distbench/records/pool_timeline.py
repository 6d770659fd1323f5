"""The timeline of a pool: who has which slot, and when servers are ready. Each job has a timeline of its own.

Written and read as that of a job (``records/timeline.py``), by the pool's controller and the servers.
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
    """The serving should have so many slots from now on."""

    slots: int


class ServerReady(_Line, frozen=True, kw_only=True, tag="server_ready"):
    """A server of the serving has loaded what it needs."""

    slot: int


class ServerFailed(_Line, frozen=True, kw_only=True, tag="server_failed"):
    """What it was to load has raised."""

    slot: int
    error: str


PoolLine = ClockBegan | Submitted | Granted | Asked | Freed | Ended | Demanded | ServerReady | ServerFailed

POOL_LINES: msgspec.json.Decoder[PoolLine] = msgspec.json.Decoder(PoolLine)
"""Reads them."""
