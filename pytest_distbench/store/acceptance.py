"""From what nccl-tests and rccl-tests measured to bounds and baselines of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.bound_text import BoundValue
from pytest_distbench.records.metric import Scalar, metric_key
from pytest_distbench.records.perf_output import NCCL_DTYPES, NCCL_REDOPS, PerfOutput, PerfRow
from pytest_distbench.units import format_seconds

_OUR_REDOPS = {theirs: ours for ours, theirs in NCCL_REDOPS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows are taken.

    Attributes:
        in_place: those measured in place, or the others.
        dtype: as torch or as the tool calls it; empty: the only one there is.
        redop: empty: the only one there is.
        least: bytes of the smallest message.
        most: bytes of the largest; None: no limit.
    """

    in_place: bool
    dtype: str = ""
    redop: str = ""
    least: int = 1
    most: int | None = None

    def of(self, output: PerfOutput) -> list[PerfRow]:
        """The rows of a run."""
        dtype = NCCL_DTYPES.get(self.dtype, self.dtype)
        redop = NCCL_REDOPS.get(self.redop, self.redop)
        side = [row for row in output.rows if row.in_place == self.in_place]
        wanted = [
            row
            for row in side
            if (not dtype or row.dtype == dtype)
            and (not redop or row.redop == redop)
            and self.least <= row.size
            and (self.most is None or row.size <= self.most)
        ]
        if not wanted:
            found = ", ".join(sorted({f"{row.dtype} {row.redop}".strip() for row in output.rows}))
            raise ConfigurationError(
                f"no row is {'in place' if self.in_place else 'out of place'} and as asked for; there are {found} of "
                f"{min(row.size for row in output.rows)} to {max(row.size for row in output.rows)} B"
            )
        for option, names in (
            ("--dtype", {row.dtype for row in wanted}),
            ("--redop", {row.redop for row in wanted}),
            ("a file of one", {f"root {row.root}" for row in wanted}),
        ):
            if len(names) > 1:
                raise ConfigurationError(f"the rows are of {', '.join(sorted(names))}: give {option}")
        return wanted


def bounds_of(runs: Sequence[Sequence[PerfRow]], *, metric: str, margin: float) -> dict[str, BoundValue]:
    """A bound for each size: the median over runs, and a margin towards worse."""
    if metric == "busbw":
        found = {size: statistics.median(values) for size, values in _by_size(runs, lambda row: row.busbw).items()}
        return {_key(metric, size): f">= {value * (1 - margin):.4g} GB/s" for size, value in found.items() if value}
    times = {size: statistics.median(values) for size, values in _by_size(runs, lambda row: row.time_s).items()}
    return {_key(metric, size): f"<= {format_seconds(value * (1 + margin))}" for size, value in times.items() if value}


def baselines_of(runs: Sequence[Sequence[PerfRow]], *, in_place: bool) -> dict[str, BaselineMetric]:
    """What a store keeps of each size that all runs measured: a time per run."""
    redop = _OUR_REDOPS.get(runs[0][0].redop, runs[0][0].redop)
    identity: dict[str, Scalar] = {"in_place": in_place, **({"redop": redop} if redop not in ("", "none") else {})}
    return {
        _key("latency", size): BaselineMetric(
            better="lower", unit="s", launches=[float(f"{value:.4g}") for value in times], identity=identity
        )
        for size, times in _by_size(runs, lambda row: row.time_s).items()
        if len(times) == len(runs) and all(times)
    }


def _by_size(runs: Iterable[Iterable[PerfRow]], value: Callable[[PerfRow], float]) -> Mapping[int, list[float]]:
    """Size -> a value per run: of the cycles of one run the median."""
    found: dict[int, list[float]] = {}
    for rows in runs:
        cycles: dict[int, list[float]] = {}
        for row in rows:
            cycles.setdefault(row.size, []).append(value(row))
        for size, values in cycles.items():
            found.setdefault(size, []).append(statistics.median(values))
    return dict(sorted(found.items()))


def _key(metric: str, size: int) -> str:
    return metric_key(metric, {"message_bytes": size})
