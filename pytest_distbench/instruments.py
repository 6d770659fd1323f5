"""``pytest_distbench.record``, ``timed`` and ``phase``: for training scripts, which also run without the plugin.

Below ``distbench.run("train.py")``, or a command that ``distbench.run`` starts, they do what ``rank.record``,
``rank.timed`` and ``rank.phase`` do. Anywhere else they do nothing: nothing heavy is imported, nothing can go wrong,
and a ``timed`` loop is a plain loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

from pytest_distbench.records.launch_files import NOTES_VARIABLE

if TYPE_CHECKING:
    from pytest_distbench.records.kinds import Better
    from pytest_distbench.records.metric import Scalar
    from pytest_distbench.worker.context import RankContext


def record(
    name: str,
    value: SupportsFloat | Iterable[SupportsFloat] | None,
    *,
    unit: str = "",
    better: Better = "info",
    **options: Any,
) -> None:
    """Record a number or a series as ``rank.record``; without the plugin do nothing.

    Further calls under the same name, as in a loop of the script, give the next values of a series.

    Args:
        name: name of the metric.
        value: a finite number, a series, or None for "has no value"; numpy's and torch's count, too.
        unit: ``s`` and ``B`` are scaled where printed, any other text is shown as it is.
        better: how the number is judged, as in ``rank.record``.
        options: ``reduce``, ``at``, ``identity``, ``facts``, ``at_most``, ``at_least``.

    Raises:
        RecordingError: below the plugin, where an argument is not what is wanted.
    """
    if (rank := _rank()) is not None:
        rank.record(name, value, unit=unit, better=better, **options)


def timed(name: str, *, warmup: int, iterations: int, **options: Any) -> Iterator[int]:
    """Time the body of a ``for`` loop, as ``rank.timed``; without the plugin a loop over the same indices.

    Args:
        name: name of the metric, which is in seconds; lower is better.
        warmup: untimed iterations; their indices are negative.
        iterations: timed iterations.
        options: ``at``, ``identity``, ``facts``, ``mode``.

    Raises:
        RecordingError: below the plugin, where an argument is not what is wanted.
    """
    if (rank := _rank()) is not None:
        return rank.timed(name, warmup=warmup, iterations=iterations, **options)
    return iter(range(-warmup, iterations))


def phase(
    name: str, *, better: Literal["info", "lower"] = "info", at: Mapping[str, Scalar] | None = None
) -> AbstractContextManager[None]:
    """Time a part of the script as ``rank.phase``; without the plugin do nothing.

    Entered again, as in a loop of the script, it gives the next value of a series.

    Args:
        name: name of the part.
        better: ``info`` explains other metrics; ``lower`` is judged itself.
        at: the measured point, such as ``{"message_bytes": 4096}``; it distinguishes metrics of one name.

    Raises:
        RecordingError: below the plugin, where an argument is not what is wanted.
    """
    if (rank := _rank()) is not None:
        return rank.phase_at(name, better, at)
    return contextlib.nullcontext()


def _rank() -> RankContext | None:
    module = sys.modules.get("pytest_distbench.worker.script")
    found: RankContext | None = getattr(module, "CURRENT", None)
    if found is None and module is None and (plan := os.environ.get(NOTES_VARIABLE)):
        from pytest_distbench.worker.script import begin_apart

        found = begin_apart(plan)
    return found
