"""The fixtures ``collective_sweep`` and ``time_to_accuracy``: the two common shapes of a distbench test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_distbench import workloads
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.plugin.fixtures import Distbench
from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.plugin.runs import Run
from pytest_distbench.workloads.collectives import Operation, operation
from pytest_distbench.workloads.dtypes import item_bytes
from pytest_distbench.workloads.message_sizes import mlbench_sizes, power_of_two_sizes

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_WORKLOADS = Path(workloads.__file__).parent


class CollectiveSweep:
    """The ``collective_sweep`` fixture: latency of one collective over message sizes, validated exactly."""

    def __init__(self, distbench: Distbench, max_message_bytes: int | None) -> None:
        self._distbench = distbench
        self._max_message_bytes = max_message_bytes

    def __call__(
        self,
        collective: str,
        *,
        dtype: str = "float32",
        sizes: Sequence[int] | str = "powers",
        iterations: int | None = None,
        warmup: int = 5,
        max_bytes: int | None = None,
        cache: str = "rotate",
        **options: Any,
    ) -> Run:
        """Measure and judge a sweep.

        Args:
            collective: torch name, for example ``all_reduce``, or an
                :class:`~pytest_distbench.workloads.collectives.Operation` of your own by file and name, as bodies are:
                ``"my_operations.py::BROADCAST"``.
            dtype: name of the element type.
            sizes: message sizes in bytes, ``"powers"`` (4 B to 64 MiB, doubling) or ``"mlbench"`` (task 0a).
            iterations: timed per size; None: as many as fit a time budget, decided by rank 0, 8 to 100.
            warmup: untimed iterations per size.
            max_bytes: larger sizes are left out; ``--distbench-max-message`` lowers it further.
            cache: ``rotate`` moves through a large buffer so that small messages leave the cache; ``hot`` does not.
            options: as for ``distbench.run``: launches, timeout, tolerance, name.

        Raises:
            Misuse: unknown collective, dtype or preset, or no size left.
        """
        try:
            item = item_bytes(dtype)
            body = _body(collective)
            chosen = _sizes(sizes, item)
        except ConfigurationError as error:
            raise Misuse(str(error)) from None
        if cache not in ("rotate", "hot"):
            raise Misuse(f"cache={cache!r}: known are rotate and hot")
        caps = [cap for cap in (max_bytes, self._max_message_bytes) if cap is not None]
        kept = [size for size in chosen if size >= item and all(size <= cap for cap in caps)]
        if not kept:
            raise Misuse(
                f"no message size left of {len(chosen)}: {dtype} takes {item} B, "
                f"the largest allowed is {min(caps, default=0)} B"
            )
        params = {
            "collective": collective,
            "dtype": dtype,
            "sizes": kept,
            "iterations": iterations,
            "warmup": warmup,
            "cache": cache,
        }
        return self._distbench.run(body, params=params, **options)


class TimeToAccuracy:
    """The ``time_to_accuracy`` fixture: short trainings to a goal, once per seed, in one process group."""

    def __init__(self, distbench: Distbench) -> None:
        self._distbench = distbench

    def __call__(
        self,
        train: Callable[[RankContext], object] | str,
        *,
        goal: float,
        seeds: Sequence[int] = (0,),
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Run:
        """Train and judge steps, final accuracy, time and step time; fail if the goal is never reached.

        Args:
            train: body that drives ``rank.goal(..., target=rank.params["goal"])``.
            goal: the target the metric must reach.
            seeds: one training each, with ``rank.seed`` set.
            params: handed to the body beside ``goal``.
            options: as for ``distbench.run``: launches, timeout, tolerance, name.
        """
        return self._distbench.run(train, params={**(params or {}), "goal": goal}, seeds=seeds, **options)


def _body(collective: str) -> str:
    """The body that sweeps a collective: the package's, by its row in the table, or a row in a file of the user's."""
    if not isinstance(collective, str):
        raise ConfigurationError(f"collective={collective!r}: wanted a torch name, or 'my_operations.py::ROW'")
    file, separator, name = collective.partition("::")
    if separator and file and name:
        return f"{collective}.{Operation.sweep.__name__}"
    operation(collective)
    return f"{_WORKLOADS / 'sweep.py'}::collective_sweep"


def _sizes(sizes: Sequence[int] | str, item: int) -> list[int]:
    if sizes == "powers":
        return power_of_two_sizes(4, 64 * 2**20)
    if sizes == "mlbench":
        return mlbench_sizes(item)
    if isinstance(sizes, str):
        raise ConfigurationError(
            f"unknown preset of sizes {sizes!r}: known are 'powers' and 'mlbench', or give a list of bytes"
        )
    wrong = [s for s in sizes if not isinstance(s, int) or s < 1]
    if wrong:
        raise ConfigurationError(f"sizes: {wrong[0]!r} is not a number of bytes")
    return list(sizes)
