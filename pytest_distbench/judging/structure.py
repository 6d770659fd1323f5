"""What a fingerprint says in numbers: how many collectives, and how many bytes are sent and held. Pure.

They are what is judged where clocks and values mean nothing, on the backend ``fake``, and what grows with the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_distbench.judging.collective_text import payload_bytes
from pytest_distbench.judging.fingerprint_rule import ranks_of
from pytest_distbench.records.iteration import Fingerprint, of_rank
from pytest_distbench.records.metric import Measurement

UNITS = {"collectives": "", "sent_bytes": "B", "parameter_bytes": "B", "optimizer_bytes": "B"}
"""The numbers, by the names of their metrics, and their units: collectives are of one iteration, sends and receives
among them, and optimizers keep their bytes beside the parameters."""


def structure_of(fingerprint: Fingerprint) -> dict[str, int]:
    """Of the first rank that it tells of."""
    rank = ranks_of(fingerprint)[0]
    rows = of_rank(fingerprint.collectives, rank) or []
    return {
        "collectives": sum(row.count for row in rows),
        "sent_bytes": payload_bytes(rows),
        "parameter_bytes": of_rank(fingerprint.parameter_bytes, rank) or 0,
        "optimizer_bytes": of_rank(fingerprint.optimizer_bytes, rank) or 0,
    }


def structure_metrics(fingerprints: Mapping[str, Fingerprint]) -> list[Measurement]:
    """A metric of each number, ``parameter_bytes[of=step_time]``; but for collectives those of 0 are left out."""
    return [
        Measurement(name=name, unit=UNITS[name], better="exact", value=value, at={"of": key})
        for key, fingerprint in fingerprints.items()
        if not fingerprint.missing
        for name, value in structure_of(fingerprint).items()
        if value or name == "collectives"
    ]
