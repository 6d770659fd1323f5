"""What the sweep's clock adds: bus bandwidth of the sweep beside a bare loop over torch.distributed.

    python benchmarks/sweep_overhead.py [--blocks 24] [--sizes 4 1048576] [--json OUT]

Two gloo ranks. Per size the sweep of all_reduce and a bare loop take turns in one process group, block by block, either
first: barrier, ``time.perf_counter``, the call, the maximum over ranks of each iteration. Both make their memory anew
in every block and rotate through it: memory that was just used is faster by more than a clock adds. A value is the 25th
percentile of a block's iterations, as a launch's is. Printed are medians over blocks: the ratio of bandwidths, sweep
over bare (the factor and the bytes are equal, so it is the ratio of times turned round), with its 95 % interval by
bootstrap over blocks, and what an iteration of the sweep takes longer. Last, all sizes from 1 MiB up together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measuring import launched
from numpy.typing import NDArray

from pytest_distbench.launch.starters.warm import WarmLauncher
from pytest_distbench.machine.locks import alone_on_this_host
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.report.texts.layout import layout
from pytest_distbench.units import format_bytes, format_seconds
from pytest_distbench.workloads.protocol import power_of_two_sizes

LARGE = 2**20
"""From here on the ratio has to be 1."""

SIZES = power_of_two_sizes(4, 2**26)
RESAMPLES = 10_000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """Seconds of an iteration in each block, of the sweep and of the bare loop beside it."""

    size: int
    swept: Array
    bare: Array

    @classmethod
    def of(cls, record: LaunchRecord, size: int) -> Blocks:
        """From what the ranks recorded."""

        def values(name: str) -> Array:
            return np.array([np.quantile(m.series, 0.25) for m in record.measurements if m.name == name])

        return cls(size, values("swept"), values("bare"))

    @property
    def ratios(self) -> Array:
        """Bus bandwidth of the sweep over that of the bare loop, by block."""
        return self.bare / self.swept

    @property
    def added_s(self) -> Array:
        """What an iteration takes longer, by block."""
        return self.swept - self.bare


def interval(values: Array, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap over blocks."""
    dice = np.random.default_rng(seed)
    medians = np.median(values[dice.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def table(found: Sequence[Blocks]) -> list[str]:
    """As lines."""
    rows = [_row(format_bytes(b.size), b.bare, b.ratios, b.added_s) for b in found]
    large = [b for b in found if b.size >= LARGE]
    if large:
        # one number of each round of blocks: the median over sizes
        ratios = np.median([b.ratios for b in large], axis=0)
        low, high = (f"{edge:.3f}" for edge in interval(ratios))
        rows.append((f"from {format_bytes(LARGE)} up", "", f"{np.median(ratios):.3f}", f"{low} to {high}", "", ""))
    return layout(("size", "bare loop", "ratio of busbw", "95 % interval", "added", "95 % interval"), rows)


def _row(name: str, bare: Array, ratios: Array, added_s: Array) -> tuple[str, ...]:
    low, high = interval(ratios)
    least, most = (f"{s * 1e6:+.1f}" for s in interval(added_s))
    return (
        name,
        format_seconds(float(np.median(bare))),
        f"{np.median(ratios):.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{np.median(added_s) * 1e6:+.1f} us",
        f"{least} to {most}",
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every block's seconds")
    options = parser.parse_args()
    found: list[Blocks] = []
    params = {
        "collective": "all_reduce",
        "dtype": "float32",
        "iterations": options.iterations,
        "warmup": 5,
        "cache": "rotate",
        "blocks": options.blocks,
    }
    with (
        tempfile.TemporaryDirectory(prefix="distbench-") as name,
        alone_on_this_host(on_wait=lambda text: print(text, file=sys.stderr)),
    ):
        launcher = WarmLauncher(Path(name), uuid.uuid4().hex)
        try:
            for size in options.sizes:
                record = launched(launcher, Path(name), "sweep_beside_bare_loop", params={**params, "sizes": [size]})
                found.append(Blocks.of(record, size))
                print(f"{format_bytes(size)}: {record.wall_s:.1f} s", file=sys.stderr)
        finally:
            launcher.close()
    print("\n".join(table(found)))
    if options.json is not None:
        rows = [{"message_bytes": b.size, "swept_s": list(b.swept), "bare_s": list(b.bare)} for b in found]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
