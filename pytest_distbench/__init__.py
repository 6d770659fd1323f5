"""Performance and accuracy regression tests for distributed PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench.elastic.worker.training import ElasticRank as ElasticRank
    from pytest_distbench.instruments import phase as phase
    from pytest_distbench.instruments import record as record
    from pytest_distbench.instruments import timed as timed
    from pytest_distbench.worker.context import RankContext as RankContext


def __getattr__(name: str) -> object:
    """Import the public names when they are first used: an unused plugin imports none of them.

    ``RankContext`` and ``ElasticRank`` import torch. Under ``TYPE_CHECKING`` they cost pytest's process nothing.
    """
    if name == "__version__":
        from pytest_distbench.releases import own_version

        return own_version()
    if name == "RankContext":
        from pytest_distbench.worker.context import RankContext

        return RankContext
    if name == "ElasticRank":
        from pytest_distbench.elastic.worker.training import ElasticRank

        return ElasticRank
    if name in ("record", "timed", "phase"):
        from pytest_distbench import instruments

        return getattr(instruments, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
