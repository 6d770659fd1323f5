"""The fixtures ``collective_sweep``, a collective over message sizes, and ``communication``, shapes of real traffic."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Unpack, get_args

import pytest

from pytest_distbench import workloads
from pytest_distbench.errors import look_up, show
from pytest_distbench.plugin.arguments import MOST_ITERATIONS, Arguments, Called, ShapeKeywords, several
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.metric import as_scalar
from pytest_distbench.records.wanted import MODES, OverRanks
from pytest_distbench.units import as_int, format_bytes
from pytest_distbench.workloads import gradients, links, replay
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
)

LARGEST_BYTES = 2**45
MOST_PARTS = 10**4
MOST_SIZES = 10**4  # more of any is a typing error

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
            iterations: timed per size, by default 5 to 100, as many as fit a time budget.
            warmup: untimed per size, by default 5.
            mode: ``per-iteration``, ``batch`` or ``graph``, as for ``rank.timed``; ``graph`` needs ``cache="hot"`` and
                GPUs.
            over_ranks: ``max`` of the ranks' times, or their ``mean``, as nccl-tests reports.
            in_place: whether send and receive buffer share memory, by default torch's form.
            root: root of a rooted operation; ``"shift"``: the next rank in each iteration.
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
        self._distbench.skip_without_timings("a sweep measures times")
        given = self._distbench.arguments("collective_sweep")
        given.keywords(options, self.__call__, ShapeKeywords)
        ranks = given.ranks(options.get("world_size"), self._distbench.world_size)
        if not isinstance(collective, str):
            given.refuse(f"collective={show(collective)}: wanted a torch name, or 'my_operations.py::ROW'")
        file, _, own = collective.partition("::")
        is_own = bool(file and own)  # a row in a file of the user's
        body, called_by = (collective, _SWEEP) if is_own else (f"{_WORKLOADS / 'sweep.py'}::collective_sweep", "")
        with given:
            row = None if is_own else operation(collective)
            usual = look_up(PRESETS, sizes, "preset of sizes", hint=_HINT) if isinstance(sizes, str) else _UNNAMED
        dtypes = _names(given, "dtype", dtype, DTYPES)
        redops = _names(given, "redop", redop, REDUCTIONS, "reduce operation")
        with given:
            group = number if (number := as_int(group)) is not None else group
            groups = groups_of(group, ranks)
        largest = max([dtypes] if isinstance(dtypes, str) else dtypes, key=item_bytes)
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
        self._check_choices(given, row, choices, cache)
        iterations = usual.iterations if iterations is None else iterations
        if iterations is not None:
            iterations = given.whole("iterations", iterations, least=1, most=MOST_ITERATIONS)
        warmup = given.whole("warmup", usual.warmup if warmup is None else warmup, least=0, most=MOST_ITERATIONS)
        if choices["mode"] != "per-iteration" and not warmup:
            given.refuse(f"mode={choices['mode']!r} needs a warm-up, which gives the fingerprint: warmup=1 or more")
        kept = self._sizes(given, sizes, usual, max_bytes, largest)
        if row is not None:
            with given:  # it can send none of them
                row.message_sizes(kept, item_bytes=item_bytes(largest), world_size=len(groups[0]), parts=parts)
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
            return self._distbench.path.run(given, wanted)
        collective = (wanted.params or {})["collective"]
        if transport == "all":
            transport = [name for name, (_, of) in TRANSPORTS.items() if not of or collective in of]
        names = _names(given, "transport", transport, TRANSPORTS)
        if isinstance(names, str):
            return self._distbench.path.run(given, self._sent_by(given, wanted, names))
        each = [replace(self._sent_by(given, wanted, name), name=f"{wanted.name} {name}".strip()) for name in names]
        return self._distbench.run_interleaved(given, each)

    def _sent_by(self, given: Arguments, wanted: Called, name: str) -> Called:
        (variables, collectives), backend, params = TRANSPORTS[name], self._distbench.backend, dict(wanted.params or {})
        if collectives and params["collective"] not in collectives:
            given.refuse(f"transport={name!r} is for {', '.join(collectives)}, not for {params['collective']}")
        if backend not in variables:
            pytest.skip(f"not run: {' and '.join(variables)} can use {name!r}, and {backend} cannot choose")
        return replace(wanted, params={**params, "transport": name}, env=variables[backend])

    def _check_choices(
        self, given: Arguments, row: Operation | None, choices: Mapping[str, object], cache: str
    ) -> None:
        on_gpus = self._distbench.device == "cuda"
        redop, root, in_place = (choices[name] for name in ("redop", "root", "in_place"))
        if choices["buffers"] == "registered" and (not on_gpus or choices["group"] != "all"):
            given.refuse("buffers='registered' needs NCCL on GPUs, and the group of all ranks: give --gpu")
        if choices["mode"] == "graph" and (cache != "hot" or root == SHIFT or not on_gpus):
            given.refuse("mode='graph' replays one call: it needs --gpu, cache='hot', and a root that stays")
        if row is None:
            return
        if not row.reduces and redop != "sum":
            given.refuse(f"redop={show(redop)}: {row.name} reduces nothing; those that do: {_that('reduces')}")
        if not row.is_rooted and root != 0:
            given.refuse(f"root={show(root)}: {row.name} has no root; those that have: {_that('is_rooted')}")
        if in_place is not None and in_place not in row.in_place:
            had = " or ".join(map(str, row.in_place))
            given.refuse(f"in_place={show(in_place)}: torch has {row.name} with in_place={had}")
        if choices["together"] == "coalesced" and not row.coalesces:
            given.refuse(f"together='coalesced': torch coalesces {_that('coalesces')}, and not {row.name}")

    def _sizes(self, given: Arguments, sizes: object, usual: Preset, max_bytes: object, dtype: str) -> list[int]:
        item = item_bytes(dtype)
        if isinstance(sizes, str):
            chosen = usual.sizes(item)
        else:
            listed = several(sizes, most=MOST_SIZES)
            if not listed:
                given.refuse(f"sizes={show(sizes)}; wanted a list of numbers of bytes, or one of {', '.join(PRESETS)}")
            if len(listed) > MOST_SIZES:
                given.refuse(f"sizes={show(sizes)}; wanted at most {MOST_SIZES} sizes")
            chosen = [given.whole("sizes: a number of bytes", size, least=1, most=LARGEST_BYTES) for size in listed]
            if len(set(chosen)) < len(chosen):
                given.refuse(f"sizes={show(sizes)}; each can be measured only once")
        largest = LARGEST_BYTES
        if max_bytes is not None:
            largest = given.whole("max_bytes", max_bytes, least=1, most=LARGEST_BYTES)
        allowed = math.inf if self._max_message_bytes is None else self._max_message_bytes
        asked = [size for size in chosen if item <= size <= largest]
        kept = [size for size in asked if size <= allowed]
        if asked and not kept:
            _skip_beyond("smallest message", min(asked), allowed)
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
"""Usual ways to send and time messages. They are not stored, so that cases outlive new choices."""

_UNNAMED = Preset(sizes=lambda item: [])
_HINT = ", or give a list of bytes"


def _names(
    given: Arguments, argument: str, value: object, table: Mapping[str, object], what: str = ""
) -> str | list[str]:
    if value == "all":
        return [*table]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        given.refuse(f"{argument}={show(value)}; wanted a name, a list of names, or 'all'")
    with given:
        for name in names:
            look_up(table, name, what or argument)
    return value if isinstance(value, str) else list(dict.fromkeys(names))


def _that(has: str) -> str:
    return ", ".join(name for name, row in OPERATIONS.items() if getattr(row, has))


def _skip_beyond(message: str, num_bytes: int, allowed: float) -> NoReturn:
    said = f"its {message} has {format_bytes(num_bytes)}"
    pytest.skip(f"not run: {said}, --distbench-max-message is {format_bytes(allowed)}")


_LARGEST_MATRIX = 2**17
_MOST_LAYERS = 1000
_MOST_LISTED = 1000
_MESSAGES = ("message_bytes", "bandwidth_bytes", "latency_bytes")
"""Parameters with the size of a message. Compression has none: the caller does not choose the size of gradients."""


class Communication:
    """The ``communication`` fixture.

    Every method takes ``iterations`` (timed ones) and ``warmup`` (untimed ones before them), raises Misuse where an
    argument cannot be used, and skips the test where its messages are larger than ``--distbench-max-message``.
    """

    def __init__(self, distbench: Distbench, max_message_bytes: int | None) -> None:
        self._distbench = distbench
        self._max_message_bytes = max_message_bytes

    def buckets(
        self,
        *,
        message_bytes: int = 4 * 2**20,
        tensors: Sequence[int] = gradients.TENSORS,
        calls: Sequence[str] = tuple(gradients.CALLS),
        dtype: str = "float32",
        iterations: int = 10,
        warmup: int = 2,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """The same bytes, all_reduced in few tensors and in many: ``latency`` at ``tensors`` and ``calls``.

        Args:
            message_bytes: bytes of all tensors together.
            tensors: numbers of tensors, one after another.
            calls: ``each`` (one all_reduce per tensor), ``coalesced`` (one for all), ``flattened`` (copied into one
                bucket and back).
            dtype: element type.
            iterations: timed iterations.
            warmup: untimed iterations.
        """
        given = self._arguments("buckets", options)
        message_bytes = given.whole("message_bytes", message_bytes, least=1, most=LARGEST_BYTES)
        counts = [given.whole("tensors: a number", n, least=1) for n in self._each_once(given, "tensors", tensors)]
        chosen = self._each_once(given, "calls", calls)
        if unknown := [name for name in chosen if not isinstance(name, str) or name not in gradients.CALLS]:
            given.refuse(f"unknown calls {show(unknown[0])}: known are {', '.join(gradients.CALLS)}")
        with given:
            elements = gradients.elements_of(message_bytes, given.text("dtype", dtype))
            gradients.tensor_lengths(elements, max(counts))
        params = {"message_bytes": message_bytes, "tensors": counts, "calls": chosen, "dtype": dtype}
        return self._run("gradients.py::bucket_sweep", given, params, iterations, warmup, options)

    def overlap(
        self,
        *,
        message_bytes: int = 4 * 2**20,
        matrix: int = 256,
        multiplications: int = 8,
        dtype: str = "float32",
        iterations: int = 20,
        warmup: int = 3,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """An all_reduce that overlaps with matrix multiplications: each alone, both together, and the exposed part.

        Args:
            message_bytes: bytes of the all_reduce.
            matrix: rows and columns of the square matrices.
            multiplications: number of multiplications; together they should take as long as the all_reduce.
            dtype: element type.
            iterations: timed iterations.
            warmup: untimed iterations.
        """
        given = self._arguments("overlap", options)
        if not isinstance(dtype, str) or dtype not in gradients.MATRIX_DTYPES:
            given.refuse(f"dtype={show(dtype)}; matrices have one of {', '.join(gradients.MATRIX_DTYPES)}")
        message_bytes = given.whole("message_bytes", message_bytes, least=1, most=LARGEST_BYTES)
        with given:
            gradients.elements_of(message_bytes, dtype)
        params = {
            "message_bytes": message_bytes,
            "matrix": given.whole("matrix", matrix, least=1, most=_LARGEST_MATRIX),
            "multiplications": given.whole("multiplications", multiplications, least=1, most=MOST_ITERATIONS),
            "dtype": dtype,
        }
        return self._run("gradients.py::overlap", given, params, iterations, warmup, options)

    def compression(
        self,
        hook: str,
        *,
        width: int = 256,
        layers: int = 4,
        batch: int = 32,
        approximation_rank: int = 1,
        iterations: int = 20,
        warmup: int = 3,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """A DDP training whose gradients one of torch's hooks compresses: time, bytes, and the gradient's error.

        PowerSGD compresses before the warm-up begins. If torch or the backend does not support the hook, the test is
        skipped, with the reason.

        Args:
            hook: ``none``, ``fp16``, ``bf16`` or ``powersgd``.
            width: width of the linear layers, which are square.
            layers: number of linear layers.
            batch: samples of each rank.
            approximation_rank: rank of PowerSGD's approximation.
            iterations: timed iterations.
            warmup: untimed iterations.
        """
        given = self._arguments("compression", options)
        with given:
            look_up(gradients.HOOKS, hook, "hook")
        params = {
            "hook": hook,
            "width": given.whole("width", width, least=1, most=_LARGEST_MATRIX),
            "layers": given.whole("layers", layers, least=1, most=_MOST_LAYERS),
            "batch": given.whole("batch", batch, least=1, most=LARGEST_BYTES),
            "approximation_rank": given.whole("approximation_rank", approximation_rank, least=1, most=width),
        }
        return self._run("gradients.py::compressed_training", given, params, iterations, warmup, options)

    def links(
        self,
        *,
        latency_bytes: int = 8,
        bandwidth_bytes: int = 2**20,
        pattern: str = "ping-pong",
        max_imbalance: float | None = None,
        iterations: int = 20,
        warmup: int = 3,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """Every pair of ranks, one at a time: ``latency`` and ``bandwidth`` at ``from`` and ``to``.

        Args:
            latency_bytes: bytes of the small messages.
            bandwidth_bytes: bytes of the large messages.
            pattern: ``ping-pong`` (each pair once) or ``one-way`` (bursts, both directions).
            max_imbalance: the test fails if a link takes so many times as long as a typical one. Needs three ranks.
            iterations: timed iterations.
            warmup: untimed iterations.
        """
        given = self._arguments("links", options)
        if given.ranks(options.get("world_size"), self._distbench.world_size) < 2:
            given.refuse("a link needs two ranks, and this test has 1: run it with --world-size 2 or more")
        with given:
            links.pairs(2, pattern)
        params = {
            "latency_bytes": given.whole("latency_bytes", latency_bytes, least=1, most=LARGEST_BYTES),
            "bandwidth_bytes": given.whole("bandwidth_bytes", bandwidth_bytes, least=1, most=LARGEST_BYTES),
            "pattern": pattern,
            "max_imbalance": None if max_imbalance is None else given.number("max_imbalance", max_imbalance, above=1),
        }
        return self._run("links.py::link_matrix", given, params, iterations, warmup, options)

    def replay(
        self,
        fingerprint: Run | Fingerprint | str | os.PathLike[str],
        *,
        of: str = "",
        iterations: int = 20,
        warmup: int = 5,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """Time the collectives of a fingerprint without computation: the whole sequence, and each operation alone.

        Every iteration issues the same sequence of operations, sizes, dtypes and groups, one after the other:
        ``replay``, and ``replay[op=all_gather]``. Every rank of the run replays a fingerprint of one rank of a large
        group from the backend ``fake``.

        Args:
            fingerprint: a run of this test, a :class:`Fingerprint`, or the path of a baseline file.
            of: name of its loop, such as ``step_time``, if it has several.
            iterations: timed iterations.
            warmup: untimed iterations.

        Raises:
            Misuse: there is no such fingerprint, or these ranks cannot replay it.
        """
        given = self._arguments("replay", options)
        ranks = given.ranks(options.get("world_size"), self._distbench.world_size)
        of = given.text("of", of, may_be_empty=True)
        params = replay.replay_params(given, fingerprint, of, world_size=ranks, folder=given.file.parent)
        options.setdefault("name", "replay")
        return self._run("replay.py::replay", given, params, iterations, warmup, options)

    def _arguments(self, call: str, options: Mapping[str, object]) -> Arguments:
        self._distbench.skip_without_timings(f"communication.{call} measures times")
        given = self._distbench.arguments(f"communication.{call}")
        given.keywords(options, getattr(self, call), ShapeKeywords)
        return given

    def _each_once(self, given: Arguments, name: str, value: object) -> list[Any]:
        listed = several(value, most=_MOST_LISTED)
        if not listed or len(listed) > _MOST_LISTED:
            given.refuse(f"{name}={show(value)}; wanted a list of 1 to {_MOST_LISTED}")
        if len({str(item) for item in listed}) < len(listed):
            given.refuse(f"{name}={show(value)}; each can be measured only once")
        return listed

    def _run(
        self,
        body: str,
        given: Arguments,
        params: dict[str, Any],
        iterations: object,
        warmup: object,
        options: ShapeKeywords,
    ) -> Run:
        params["iterations"] = given.whole("iterations", iterations, least=1, most=MOST_ITERATIONS)
        params["warmup"] = given.whole("warmup", warmup, least=0, most=MOST_ITERATIONS)
        largest = max((params[name] for name in _MESSAGES if name in params), default=0)
        if self._max_message_bytes is not None and largest > self._max_message_bytes:
            _skip_beyond("message", largest, self._max_message_bytes)
        return self._distbench.path.run(given, Called(body=str(_WORKLOADS / body), params=params, **options))
