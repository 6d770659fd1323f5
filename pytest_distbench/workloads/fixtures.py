"""The fixture ``collective_sweep``: one collective over message sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, get_args

import pytest

from pytest_distbench import workloads
from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.plugin.arguments import MOST_ITERATIONS, Arguments, Called, ShapeKeywords, several
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.metric import as_scalar
from pytest_distbench.records.wanted import MODES, OverRanks
from pytest_distbench.units import as_int, format_bytes
from pytest_distbench.workloads.collectives import OPERATIONS, Operation, operation
from pytest_distbench.workloads.protocol import (
    CACHES,
    DTYPES,
    MEMORY_KINDS,
    PRESETS,
    REDUCTIONS,
    SHIFT,
    TOGETHER,
    TRANSPORTS,
    Preset,
    groups_of,
    item_bytes,
    preset,
    reduction,
    transport_of,
)

LARGEST_BYTES = 2**45
MOST_PARTS = 10**4
MOST_SIZES = 10**4
"""More of any is a typing error."""

_WORKLOADS = Path(workloads.__file__).parent
_SWEEP = "pytest_distbench.workloads.sweep:sweep"


class CollectiveSweep:
    """The ``collective_sweep`` fixture: latency of one collective over message sizes, validated exactly."""

    def __init__(self, distbench: Distbench, max_message_bytes: int | None) -> None:
        self._distbench = distbench
        self._max_message_bytes = max_message_bytes

    def __call__(
        self,
        collective: str,
        *,
        dtype: str | Sequence[str] = "float32",
        redop: str | Sequence[str] = "sum",
        sizes: Sequence[int] | str = "powers",
        max_bytes: int | None = None,
        iterations: int | None = None,
        warmup: int | None = None,
        mode: str | None = None,
        over_ranks: str | None = None,
        in_place: bool | None = None,
        root: int | str = 0,
        group: str | int = "all",
        parts: int = 1,
        together: str = "turns",
        cache: str = "rotate",
        buffers: str = "plain",
        transport: str | Sequence[str] = "",
        **options: Unpack[ShapeKeywords],
    ) -> Run | list[Run]:
        """Measure and judge a sweep over message sizes, or one for each transport.

        Args:
            collective: torch name, such as ``all_reduce``, or an
                :class:`~pytest_distbench.workloads.collectives.Operation` of yours: ``"my_operations.py::BROADCAST"``.
            dtype: element type. Of several, or ``"all"``, each is measured.
            redop: reduce operation, in the same way: ``sum``, ``avg``, ``product``, ``min``, ``max``, ``band``,
                ``bor``, ``bxor``.
            sizes: message sizes in bytes, or a preset, which also sets the other arguments: ``powers`` (4 B to 64 MiB),
                ``small``, ``gpu`` (1 KiB to 8 GiB), ``mlbench``, ``nccl-tests``.
            max_bytes: larger sizes are left out.
            iterations: timed per size; None: 5 to 100, as many as fit a time budget.
            warmup: untimed per size; None: 5.
            mode: ``per-iteration``, ``batch`` or ``graph``, as for ``rank.timed``; ``graph`` needs ``cache="hot"`` and
                GPUs.
            over_ranks: ``max`` of the ranks' times, or their ``mean``, as nccl-tests reports.
            in_place: whether send and receive buffer share memory; None: torch's usual form.
            root: of a rooted operation; ``"shift"``: the next rank in each iteration.
            group: ``all``, ``half`` of the ranks, ``halves`` (two groups), or the number of the first ranks.
            parts: tensors that the message is cut into.
            together: how they are sent: in ``turns``, ``coalesced`` into one call, or ``async``, all at once.
            cache: ``rotate``: small messages leave the cache; ``hot``: they stay.
            buffers: ``registered``: NCCL's own memory, registered with the group; it needs a GPU.
            transport: how the backend sends, such as ``ring`` or ``tree``; of several, or ``"all"``, each is a case. A
                row of ``workloads/protocol.py``.

        Raises:
            Misuse: a name is unknown, a choice does not fit the collective or the ranks, or no size is left.
        """
        self._distbench.skip_without_clocks("a sweep measures times")
        given = self._distbench.arguments("collective_sweep")
        given.keywords(options, self.__call__, ShapeKeywords)
        ranks = given.ranks(options.get("world_size"), self._distbench.world_size)
        with given:
            row, body, called_by = _find(collective)
            usual = preset(sizes) if isinstance(sizes, str) else _UNNAMED
            dtypes = _names(given, "dtype", dtype, DTYPES, item_bytes)
            redops = _names(given, "redop", redop, REDUCTIONS, reduction)
            largest = max([dtypes] if isinstance(dtypes, str) else dtypes, key=item_bytes)
            item = item_bytes(largest)
            chosen = _sizes(given, sizes, usual, item)
            group = number if (number := as_int(group)) is not None else group
            groups = groups_of(group, ranks)
        in_place = found if isinstance(found := as_scalar(in_place), bool) else in_place
        if in_place is not None and not isinstance(in_place, bool):
            given.refuse(f"in_place={show(in_place)}; wanted True, False, or None for the usual way")
        parts = given.whole("parts", parts, least=1, most=MOST_PARTS)
        choices = {
            "redop": redops,
            "mode": given.choice("mode", usual.mode if mode is None else mode, MODES),
            "over_ranks": given.choice(
                "over_ranks", usual.over_ranks if over_ranks is None else over_ranks, get_args(OverRanks)
            ),
            "in_place": in_place,
            "root": root if root == SHIFT else given.whole("root", root, least=0, most=len(groups[0]) - 1),
            "group": group,
            "parts": parts,
            "together": given.choice("together", together, TOGETHER),
            "buffers": given.choice("buffers", buffers, MEMORY_KINDS),
            "as_memory_allows": usual.as_memory_allows,
        }
        cache = given.choice("cache", cache, CACHES)
        self._check_machine(given, choices, cache)
        iterations = usual.iterations if iterations is None else iterations
        if iterations is not None:
            iterations = given.whole("iterations", iterations, least=1, most=MOST_ITERATIONS)
        warmup = given.whole("warmup", usual.warmup if warmup is None else warmup, least=0, most=MOST_ITERATIONS)
        if choices["mode"] != "per-iteration" and not warmup:
            given.refuse(f"mode={choices['mode']!r} needs a warm-up, which gives the fingerprint: warmup=1 or more")
        kept = self._kept(given, chosen, max_bytes, item=item, dtype=largest)
        if row is not None:
            _check_fits(given, row, choices)
            with given:  # it can send none of them
                row.message_sizes(kept, item_bytes=item, world_size=len(groups[0]), parts=parts)
        params = {
            "collective": collective,
            "dtype": dtypes,
            "sizes": kept,
            "iterations": iterations,
            "warmup": warmup,
            "cache": cache,
            **{name: value for name, value in choices.items() if value != _USUAL[name]},
        }
        wanted = Called(body=body, called_by=called_by, params=params, argument="collective", **options)
        return self._run(given, wanted, transport)

    def _run(self, given: Arguments, wanted: Called, transport: str | Sequence[str]) -> Run | list[Run]:
        if transport == "":
            return self._distbench.run_wanted(given, wanted)
        collective = (wanted.params or {})["collective"]
        fitting = [name for name, row in TRANSPORTS.items() if not row.collectives or collective in row.collectives]
        with given:
            names = _names(given, "transport", transport, fitting, transport_of)
        if isinstance(names, str):
            return self._distbench.run_wanted(given, self._sent_by(given, wanted, names))
        each = [replace(self._sent_by(given, wanted, name), name=f"{wanted.name} {name}".strip()) for name in names]
        return self._distbench.run_in_turns(given, each)

    def _sent_by(self, given: Arguments, wanted: Called, name: str) -> Called:
        """The same by a transport; the test is skipped where the backend has it not."""
        row, backend, params = transport_of(name), self._distbench.backend, dict(wanted.params or {})
        if row.collectives and params["collective"] not in row.collectives:
            given.refuse(f"transport={name!r} is for {', '.join(row.collectives)}, not for {params['collective']}")
        if backend not in row.variables:
            pytest.skip(f"not run: {' and '.join(row.variables)} can use {name!r}, and {backend} cannot choose")
        return replace(wanted, params={**params, "transport": name}, env=row.variables[backend])

    def _check_machine(self, given: Arguments, choices: Mapping[str, object], cache: str) -> None:
        """Refuse choices that these ranks, or what is timed, have no place for."""
        on_gpus = self._distbench.device == "cuda"
        if choices["buffers"] == "registered" and (not on_gpus or choices["group"] != "all"):
            given.refuse("buffers='registered' needs NCCL on GPUs, and the group of all ranks: give --gpu")
        if choices["mode"] == "graph" and (cache != "hot" or choices["root"] == SHIFT or not on_gpus):
            given.refuse("mode='graph' replays one call: it needs --gpu, cache='hot', and a root that stays")

    def _kept(self, given: Arguments, chosen: Sequence[int], max_bytes: object, *, item: int, dtype: str) -> list[int]:
        """The sizes that hold an element, and are none too large; where the run allows none of them, skip the test."""
        largest = math.inf if max_bytes is None else given.whole("max_bytes", max_bytes, least=1)
        allowed = math.inf if self._max_message_bytes is None else self._max_message_bytes
        asked = [size for size in chosen if item <= size <= largest]
        kept = [size for size in asked if size <= allowed]
        if asked and not kept:
            told = f"its smallest message has {format_bytes(min(asked))}"
            pytest.skip(f"not run: {told}, --distbench-max-message is {format_bytes(allowed)}")
        if not kept:
            most = min(largest, allowed)
            given.refuse(
                f"no message size left of {len(chosen)}: {dtype} takes {item} B, "
                f"the largest allowed is {0 if most == math.inf else most} B"
            )
        return kept


_USUAL: dict[str, object] = {
    "redop": "sum",
    "mode": "per-iteration",
    "over_ranks": "max",
    "in_place": None,
    "root": 0,
    "group": "all",
    "parts": 1,
    "together": "turns",
    "buffers": "plain",
    "as_memory_allows": False,
}
"""How messages are sent and timed. What is as usual is not stored, so that cases outlive new choices."""

_UNNAMED = Preset(summary="a list", sizes=lambda item: [])


def _find(collective: object) -> tuple[Operation | None, str, str]:
    """The row of a collective, unless it is in a file of the user's; the body; and what it is called by."""
    if not isinstance(collective, str):
        raise ConfigurationError(f"collective={show(collective)}: wanted a torch name, or 'my_operations.py::ROW'")
    file, separator, name = collective.partition("::")
    if separator and file and name:
        return None, collective, _SWEEP
    return operation(collective), f"{_WORKLOADS / 'sweep.py'}::collective_sweep", ""


def _names(
    given: Arguments, argument: str, value: object, table: Iterable[str], look_up: Callable[[str], object]
) -> str | list[str]:
    if isinstance(value, str):
        if value == "all":
            return [*table]
        look_up(value)
        return value
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) for name in value):
        given.refuse(f"{argument}={show(value)}; wanted a name, a list of names, or 'all'")
    for name in value:
        look_up(name)
    return list(dict.fromkeys(value))


def _check_fits(given: Arguments, row: Operation, choices: Mapping[str, object]) -> None:
    redop, root, in_place = (choices[name] for name in ("redop", "root", "in_place"))
    if not row.reduces and redop != "sum":
        given.refuse(f"redop={show(redop)}: {row.name} reduces nothing; those that do: {_that(lambda o: o.reduces)}")
    if not row.is_rooted and root != 0:
        given.refuse(f"root={show(root)}: {row.name} has no root; those that have: {_that(lambda o: o.is_rooted)}")
    if in_place is not None and in_place not in row.in_place:
        had = " or ".join(map(str, row.in_place))
        given.refuse(f"in_place={show(in_place)}: torch has {row.name} with in_place={had}")
    if choices["together"] == "coalesced" and not row.coalesces:
        given.refuse(f"together='coalesced': torch coalesces {_that(lambda o: o.coalesces)}, and not {row.name}")


def _that(has: Callable[[Operation], bool]) -> str:
    return ", ".join(name for name, row in OPERATIONS.items() if has(row))


def _sizes(given: Arguments, sizes: object, usual: Preset, item: int) -> list[int]:
    if isinstance(sizes, str):
        return usual.sizes(item)
    listed = several(sizes, most=MOST_SIZES)
    if not listed:
        given.refuse(f"sizes={show(sizes)}; wanted a list of numbers of bytes, or one of {', '.join(PRESETS)}")
    if len(listed) > MOST_SIZES:
        given.refuse(f"sizes={show(sizes)}; wanted at most {MOST_SIZES} sizes")
    found = [given.whole("sizes: a number of bytes", size, least=1, most=LARGEST_BYTES) for size in listed]
    if len(set(found)) < len(found):
        given.refuse(f"sizes={show(sizes)}; each can be measured only once")
    return found
