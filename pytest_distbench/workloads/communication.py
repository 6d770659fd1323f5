"""The fixture ``communication``: shapes of real communication, each a call, measured and judged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import pytest

from pytest_distbench import workloads
from pytest_distbench.errors import show
from pytest_distbench.plugin.arguments import MOST_ITERATIONS, Arguments, Called, ShapeKeywords, several
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.units import format_bytes
from pytest_distbench.workloads import gradients, links, replay
from pytest_distbench.workloads.fixtures import LARGEST_BYTES

_WORKLOADS = Path(workloads.__file__).parent
_LARGEST_MATRIX = 2**17
_MOST_LAYERS = 1000
_MOST_LISTED = 1000
_MESSAGES = ("message_bytes", "bandwidth_bytes", "latency_bytes")
"""Parameters that say how large a message is. Gradients are no choice of the caller's: compression is run as it is."""


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
            message_bytes: of all tensors together.
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
            message_bytes: of the all_reduce.
            matrix: rows and columns of the square matrices.
            multiplications: their number; together they should take as long as the all_reduce.
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
            width: of the linear layers, which are square.
            layers: their number.
            batch: samples of each rank.
            approximation_rank: of PowerSGD's approximation.
            iterations: timed iterations.
            warmup: untimed iterations.
        """
        given = self._arguments("compression", options)
        with given:
            gradients.hook_named(hook)
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
            latency_bytes: of the small messages.
            bandwidth_bytes: of the large ones.
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
        params = replay.replay_params(given, fingerprint, of, world_size=ranks, beside=given.file.parent)
        options.setdefault("name", "replay")
        return self._run("replay.py::replay", given, params, iterations, warmup, options)

    def _arguments(self, call: str, options: Mapping[str, object]) -> Arguments:
        self._distbench.skip_without_clocks(f"communication.{call} measures times")
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
            told = f"its message has {format_bytes(largest)}"
            pytest.skip(f"not run: {told}, --distbench-max-message is {format_bytes(self._max_message_bytes)}")
        return self._distbench.run_wanted(given, Called(body=str(_WORKLOADS / body), params=params, **options))
