"""What one iteration does, in whole numbers: of one rank, and of a launch."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pytest_distbench.records.record import Record

NOT_RECORDED = "collectives are not recorded by"
"""How the reason begins where this torch cannot give a fingerprint: true of a whole run, and told once in it."""

_RANKS = r"^(all|\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*)$"


class Collective(Record, frozen=True, array_like=True):
    """Equal collectives in a row; in files a list: ``["all_reduce", "float32", 4096, "default", 2]``."""

    op: str
    dtype: str
    """Empty where nothing is sent, as in a barrier."""
    message_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Bytes one rank puts in."""
    group: str
    """``default``, or the description or name of another process group."""
    count: Annotated[int, msgspec.Meta(ge=1)]


class RankFingerprint(Record, frozen=True, kw_only=True):
    """What one rank did in one untimed iteration or training step."""

    collectives: list[Collective] = []
    parameters: int = 0
    """Elements the optimizers that stepped in it hold."""
    optimizer_steps: int = 0
    entered: list[float] = []
    """When it entered each collective, seconds since its first; of the first few hundred."""
    began: float = 0.0
    """When it entered the first, CLOCK_REALTIME seconds."""
    missing: str = ""
    """Why nothing is known; empty where it is."""


class Fingerprint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one iteration or training step does, in whole numbers that no noise can move."""

    collectives: dict[Annotated[str, msgspec.Meta(pattern=_RANKS)], list[Collective]] = {}
    """In the order they were entered, by ranks: ``all``, or ``0`` and ``1-3`` where ranks differ."""
    parameters: int = 0
    """Elements that the optimizers of all ranks hold together."""
    optimizer_steps: int = 0
    """Of all ranks together: one that skips its step is seen."""
    missing: str = ""
    """Why there is none: it cannot be read here, or differs between launches."""
