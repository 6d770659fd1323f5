"""Performance and accuracy regression tests for distributed PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench.installation import __version__ as __version__
    from pytest_distbench.worker.context import RankContext as RankContext


def __getattr__(name: str) -> object:
    """The version, and what bodies are annotated with, looked up when asked for: an unused plugin imports neither.

    ``RankContext`` imports torch. Under ``TYPE_CHECKING`` it costs pytest's process nothing.
    """
    if name == "__version__":
        from pytest_distbench.installation import __version__

        return __version__
    if name == "RankContext":
        from pytest_distbench.worker.context import RankContext

        return RankContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
