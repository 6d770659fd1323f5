"""Identity: whether two numbers of one name measure the same thing. Pure, no I/O."""

from __future__ import annotations

from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.metric import Measurement


def difference(stored: BaselineMetric | Measurement, current: Measurement) -> str:
    """Why a number cannot be compared with a stored one: ``mode was per-iteration, now loop``; empty where it can.

    What only one of them notes is not known to differ: entries from before it was noted stay comparable.
    """
    if stored.better != current.better:
        return f"the kind was {stored.better!r}, now it is {current.better!r}"
    if stored.unit != current.unit:
        return f"the unit was {stored.unit!r}, now it is {current.unit!r}"
    for name in sorted({*stored.identity} & {*current.identity}):
        if stored.identity[name] != current.identity[name]:
            return f"{name} was {stored.identity[name]}, now {current.identity[name]}"
    return ""
