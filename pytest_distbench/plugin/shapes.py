"""The fixtures ``collective_sweep`` and ``time_to_accuracy``: the two common shapes of a distbench test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_distbench import workloads
from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.fixtures import Distbench
from pytest_distbench.plugin.runs import Run
from pytest_distbench.records.choices import MODES
from pytest_distbench.workloads.collectives import Operation, operation
from pytest_distbench.workloads.dtypes import item_bytes
from pytest_distbench.workloads.message_sizes import mlbench_sizes, power_of_two_sizes

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

MOST_ITERATIONS = 10**6
LARGEST_BYTES = 2**45
"""More of either is a typing error."""

_WORKLOADS = Path(workloads.__file__).parent
_CACHES = ("rotate", "hot")
_BUFFERS = ("plain", "registered")
OPTIONS = ("world_size", "launches", "timeout", "tolerance", "name")
"""Of ``distbench.run``, handed on as they are."""

_PRESETS: dict[str, Callable[[int], list[int]]] = {
    "powers": lambda item: power_of_two_sizes(4, 64 * 2**20),
    "mlbench": mlbench_sizes,
    "gpu": lambda item: power_of_two_sizes(2**10, 2**33),
}
"""Message sizes by name, from the bytes of an element."""

_AS_MEMORY_ALLOWS = ("gpu",)
"""Presets whose largest sizes are left out where a rank has no memory for them."""


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
        buffers: str = "plain",
        mode: str = "per-iteration",
        **options: Any,
    ) -> Run:
        """Measure and judge a sweep.

        Args:
            collective: torch name, for example ``all_reduce``, or an
                :class:`~pytest_distbench.workloads.collectives.Operation` of your own by file and name, as bodies are:
                ``"my_operations.py::BROADCAST"``.
            dtype: name of the element type.
            sizes: message sizes in bytes, or ``"powers"`` (4 B to 64 MiB, doubling), ``"gpu"`` (1 KiB to 8 GiB,
                doubling, as memory allows) or ``"mlbench"`` (task 0a).
            iterations: timed per size; None: as many as fit a time budget, decided by rank 0, 8 to 100.
            warmup: untimed iterations per size.
            max_bytes: larger sizes are left out; ``--distbench-max-message`` lowers it further.
            cache: ``rotate`` moves through a large buffer so that small messages leave the cache; ``hot`` does not.
            buffers: ``registered`` takes NCCL's own memory, registered with the group (zero copy where the links can);
                it needs a GPU. Another identity than ``plain``.
            mode: of the clock, as for ``rank.timed``: ``per-iteration``; ``batch``, calls in one breath, as nccl-tests;
                ``graph``, the replay of a CUDA graph, with ``cache="hot"`` and on GPUs. Each is another identity.
            options: as for ``distbench.run``: world_size, launches, timeout, tolerance, name.

        Raises:
            Misuse: unknown collective, dtype or preset, or no size left.
        """
        self._distbench.skip_without_clocks("a sweep measures times")
        given = self._distbench.arguments("collective_sweep")
        given.options(options, OPTIONS)
        try:
            item = item_bytes(given.text("dtype", dtype))
            body = _body(collective)
            chosen = _sizes(given, sizes, item)
        except ConfigurationError as error:
            given.refuse(str(error))
        if not isinstance(cache, str) or cache not in _CACHES:
            given.refuse(f"cache={show(cache)}; wanted one of {', '.join(_CACHES)}")
        if not isinstance(buffers, str) or buffers not in _BUFFERS:
            given.refuse(f"buffers={show(buffers)}; wanted one of {', '.join(_BUFFERS)}")
        if buffers == "registered" and self._distbench.device != "cuda":
            given.refuse("buffers='registered' needs NCCL on GPUs: give --gpu")
        if not isinstance(mode, str) or mode not in MODES:
            given.refuse(f"mode={show(mode)}; wanted one of {', '.join(MODES)}")
        if mode == "graph" and (cache != "hot" or self._distbench.device != "cuda"):
            given.refuse("mode='graph' replays one call with its buffers: it needs --gpu, and cache='hot'")
        if iterations is not None:
            iterations = given.whole("iterations", iterations, least=1, most=MOST_ITERATIONS)
        warmup = given.whole("warmup", warmup, least=0, most=MOST_ITERATIONS)
        largest = None if max_bytes is None else given.whole("max_bytes", max_bytes, least=1)
        caps = [cap for cap in (largest, self._max_message_bytes) if cap is not None]
        kept = [size for size in chosen if size >= item and all(size <= cap for cap in caps)]
        if not kept:
            given.refuse(
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
            **({"buffers": buffers} if buffers != "plain" else {}),
            **({"mode": mode} if mode != "per-iteration" else {}),
            **({"as_memory_allows": True} if sizes in _AS_MEMORY_ALLOWS else {}),
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
            options: as for ``distbench.run``: world_size, launches, timeout, tolerance, name.
        """
        given = self._distbench.arguments("time_to_accuracy")
        given.options(options, OPTIONS)
        target = given.number("goal", goal)
        parameters = given.mapping("params", params if params is not None else {})
        if "goal" in parameters:
            given.refuse("params holds 'goal', which is an argument of its own")
        return self._distbench.run(train, params={**parameters, "goal": target}, seeds=seeds, **options)


def _body(collective: str) -> str:
    """The body that sweeps a collective: the package's, by its row in the table, or a row in a file of the user's."""
    if not isinstance(collective, str):
        raise ConfigurationError(f"collective={show(collective)}: wanted a torch name, or 'my_operations.py::ROW'")
    file, separator, name = collective.partition("::")
    if separator and file and name:
        return f"{collective}.{Operation.sweep.__name__}"
    operation(collective)
    return f"{_WORKLOADS / 'sweep.py'}::collective_sweep"


def _sizes(given: Arguments, sizes: object, item: int) -> list[int]:
    """Message sizes in bytes, in the order given."""
    if isinstance(sizes, str):
        if sizes not in _PRESETS:
            given.refuse(f"unknown preset of sizes {sizes!r}: known are {', '.join(_PRESETS)}, or give a list of bytes")
        return _PRESETS[sizes](item)
    if isinstance(sizes, bytes | Mapping) or not isinstance(sizes, Sequence) or not len(sizes):
        given.refuse(f"sizes={show(sizes)}; wanted a list of numbers of bytes, or one of {', '.join(_PRESETS)}")
    found = [given.whole("sizes: a number of bytes", size, least=1, most=LARGEST_BYTES) for size in sizes]
    if len(set(found)) < len(found):
        given.refuse(f"sizes={show(sizes)}; each can be measured once only")
    return found
