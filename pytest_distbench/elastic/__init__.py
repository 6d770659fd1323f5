"""Elastic jobs: trainings on nodes that join and leave, alone or in a pool that shares slots.

``pytest_distbench.elastic`` has what a suite needs: the changes of a membership, and the parts of a pool. They are
imported when they are asked for, as ranks and an unused plugin need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench.elastic.plans import crash, cycle, draw, job, join, kill, leave, rates, serving, stop

__all__ = ["crash", "cycle", "draw", "job", "join", "kill", "leave", "rates", "serving", "stop"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from pytest_distbench.elastic import plans

        return getattr(plans, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
