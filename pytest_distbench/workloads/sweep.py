"""The sweep of a collective operation over message sizes.

Protocol: one pass over all sizes to set connections up, on a GPU until its clocks are steady; per size warm-up, then
timed iterations with an untimed barrier before each; buffers rotate through a large pool so that small messages do not
stay in cache; values are checked exactly, untimed, in a call of their own.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import BodyError, RecordingError, show
from pytest_distbench.records.metric import Scalar
from pytest_distbench.units import format_bytes
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.workloads.calls import Call, Calls, count_wrong, join, refusal, warm_up
from pytest_distbench.workloads.collectives import Form, Operation, operation
from pytest_distbench.workloads.memory import free_bytes, least_bytes, sizes_that_fit
from pytest_distbench.workloads.protocol import SHIFT, item_bytes

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

BUDGET_S = 0.12
"""Seconds per size if the number of iterations is left open. More would not reduce the noise between launches."""
FEWEST, MOST = 5, 100
LARGE_BYTES = 2**20
"""Bytes from which a call lasts so long that one warm-up iteration is enough; on CUDA timing makes more."""
_TRIALS = 3
_MOST_CALLS = 4096  # so many calls are made before timing begins; then they begin again


def collective_sweep(rank: RankContext) -> None:
    """Sweep the operation that ``rank.params["collective"]`` names, as :func:`sweep` does."""
    sweep(rank, operation(rank.params["collective"]))


def sweep(rank: RankContext, measured: Operation) -> None:
    """Record ``latency`` and ``wrong_elements`` at every message size of ``rank.params``.

    Several dtypes or reduce operations are swept at each of their pairs, and ``supported`` records whether the backend
    has it. A single pair is recorded so only if the backend does not have it.
    """
    if not isinstance(measured, Operation):
        raise BodyError(f"a collective of your own is an Operation, and this is {show(measured)}")
    params = rank.params
    dtypes, redops = params["dtype"], params.get("redop", "sum")
    form = join(rank, params.get("group", "all"))
    if isinstance(dtypes, str) and isinstance(redops, str):
        _Sweep(rank, measured, form, dtypes, redops, at={}).run()
    else:
        for dtype in [dtypes] if isinstance(dtypes, str) else dtypes:
            for redop in [redops] if isinstance(redops, str) else redops:
                at = {"dtype": dtype, **({"redop": redop} if measured.reduces else {})}
                _Sweep(rank, measured, form, dtype, redop, at=at).run()


class _Sweep:
    """The sweep of one element type and reduce operation."""

    def __init__(
        self,
        rank: RankContext,
        measured: Operation,
        form: Form | None,
        dtype: str,
        redop: str,
        *,
        at: Mapping[str, Scalar],
    ) -> None:
        params = rank.params
        self.rank, self.measured, self.at, self.dtype = rank, measured, at, dtype
        self.parts: int = params.get("parts", 1)
        self.rotates = params["cache"] == "rotate"
        self.in_place: bool = params.get("in_place", measured.in_place[0])
        self.item = item_bytes(dtype)
        root = params.get("root", 0)
        self.form = form and replace(form, redop=redop, root=0 if root == SHIFT else root)
        self.size = int(rank.agree(form.size if form else 0))
        if self.size < measured.min_ranks:
            raise unittest.SkipTest(f"{measured.name} needs {measured.min_ranks} ranks: its group has {self.size}")
        self.copies = measured.copies and not self.in_place
        self.sizes = self._sizes()
        self.calls = Calls(
            measured,
            self.form,
            size=self.size,
            device=rank.device,
            dtype=getattr(torch, dtype),
            largest=max(self.sizes) // self.item // self.parts,
            in_place=self.in_place,
            least_bytes=least_bytes(rank) if self.rotates else 0,
            parts=self.parts,
            together=params.get("together", "turns"),
            shifts_root=root == SHIFT,
            is_registered=params.get("buffers") == "registered",
        )
        self.facts: dict[str, Scalar] = {
            "busbw_factor": measured.busbw_factor(self.size),
            "collective": measured.name,
            "dtype": dtype,
        }
        self.identity = self._identity(redop, root)

    def run(self) -> None:
        reason = refusal(self.rank, lambda: self._call(min(self.sizes), 0), self._usual_call)
        if reason or self.at:
            facts = {**self.facts, **self.identity, "message_bytes": min(self.sizes), "reason": reason}
            self.rank.record("supported", float(not reason), better="exact", at=self.at, facts=facts)
        if reason:
            return
        for size in self.sizes:
            self._call(size, 0).run()
        if self.rank.device.type == "cuda":
            usual = max((size for size in self.sizes if size <= LARGE_BYTES), default=min(self.sizes))
            warm_up(self.rank, self._call(usual, 0).run)
        for i, size in enumerate(self.sizes):
            pair = " ".join(map(str, self.at.values())) or self.dtype
            self.rank.progress(f"{self.measured.name} {pair}  size {i + 1}/{len(self.sizes)}")
            if self.rank.wants("latency", {**self.at, "message_bytes": size}):
                self._measure(size)

    def _sizes(self) -> list[int]:
        rank, measured, params = self.rank, self.measured, self.rank.params
        sizes = measured.message_sizes(params["sizes"], item_bytes=self.item, world_size=self.size, parts=self.parts)
        wanted = sizes if params.get("as_memory_allows") else [max(sizes)]
        fitting = sizes_that_fit(rank, measured, wanted, self.item, in_place=self.in_place, world_size=self.size)
        if not fitting:
            raise RecordingError(
                f"{measured.name}: there is no memory for a message of {min(wanted)} B: each rank may take "
                f"{format_bytes(free_bytes(rank))}; smaller sizes: max_bytes=, or --distbench-max-message"
            )
        if len(fitting) < len(wanted):
            rank.record("largest_message", max(fitting), unit="B", at=self.at)
        return fitting if params.get("as_memory_allows") else sizes

    def _identity(self, redop: str, root: int | str) -> dict[str, Scalar]:
        """Choices that define the timing, for ``identity=``; newer choices are left out if they have their default."""
        params, measured = self.rank.params, self.measured
        usual = {"buffers": "plain", "group": "all", "parts": 1, "transport": ""}
        chosen = {name: params[name] for name in usual if params.get(name, usual[name]) != usual[name]}
        return {
            "mode": params.get("mode", "per-iteration"),
            "cache": params["cache"],
            "in_place": self.in_place,
            **({"redop": redop} if measured.reduces else {}),
            **({"root": root} if measured.is_rooted else {}),
            **chosen,
            **({"together": params.get("together", "turns")} if self.parts > 1 else {}),
            **measured.options,
        }

    def _usual_call(self) -> Call | None:
        """Make the same call in float32 with sum, or None if it is that: it fails if the call itself is wrong."""
        form = self.form and replace(self.form, redop="sum")
        if self.dtype == "float32" and (self.form is None or form == self.form):
            return None
        measured = self.measured
        [size] = measured.message_sizes([2**16], item_bytes=4, world_size=self.size)
        calls = Calls(
            measured,
            form,
            size=self.size,
            device=self.rank.device,
            dtype=torch.float32,
            largest=size // 4,
            in_place=self.in_place,
        )
        return calls.make(size // 4, 0)

    def _call(self, size: int, k: int, *, at: int | None = None) -> Call:
        return self.calls.make(size // self.item // self.parts, k, at=at)

    def _measure(self, size: int) -> None:
        rank, measured, params = self.rank, self.measured, self.rank.params
        at = {**self.at, "message_bytes": size}
        period = self.calls.period
        iterations = params["iterations"]
        if not iterations:  # as many, barriers included, as fit the time budget; rank 0 decides, so that all agree
            trials = [self._call(size, k) for k in range(_TRIALS)]
            start = HostClock.perf_counter()
            for call in trials:
                rank.barrier()
                call.run()
                rank.synchronize()
            fitting = BUDGET_S / max((HostClock.perf_counter() - start) / _TRIALS, 1e-9)
            iterations = -(-int(rank.agree(min(MOST, max(FEWEST, fitting)))) // period) * period
        warmup = params["warmup"] if size < LARGE_BYTES else min(1, params["warmup"])
        length = min(-(-(iterations + warmup) // period) * period, _MOST_CALLS // period * period)
        if self.rotates:
            calls = [self._call(size, k) for k in range(length)]
        else:
            calls = [self._call(size, k, at=0) for k in range(period)]
        runs = [call.run for call in calls]
        number = len(runs)
        granularity = measured.granularity(self.size)
        count = size // self.item // granularity if granularity else 0
        for k in rank.timed(
            "latency",
            warmup=warmup,
            iterations=iterations,
            at=at,
            identity=self.identity,
            facts={**self.facts, "count": count, **({"copies": True} if self.copies else {})},
            mode=params.get("mode", "per-iteration"),
            over_ranks=params.get("over_ranks", "max"),
            before=(lambda k: calls[k % number].copy()) if self.copies else None,
        ):
            runs[k % number]()
        if measured.expected is None or rank.backend == "fake":
            return
        wrong, example = count_wrong(rank, measured, self._call(size, 0), copies=self.copies)
        rank.record("wrong_elements", wrong, unit="elements", better="exact", at=at)
        what = " ".join(map(str, self.at.values())) or self.dtype
        assert not wrong, f"{measured.name} {what} of {size} B: {wrong} wrong elements over all ranks{example}"
