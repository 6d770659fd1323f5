"""all_reduce: latency and bus bandwidth over message sizes, every element checked.

`pytest suites/collectives --world-size 2` on CPUs (gloo), `--world-size 4 --gpu` on GPUs (nccl).
"""

import pytest

LONG = pytest.mark.full


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float16", marks=LONG), pytest.param("bfloat16", marks=LONG)]
)
def test_all_reduce(collective_sweep, tolerance, distbench, dtype):
    """By powers of two: 4 B to 64 MiB on CPUs, 1 KiB to 8 GiB on GPUs, as their memory allows."""
    sizes = "gpu" if distbench.device == "cuda" else "powers"
    collective_sweep("all_reduce", dtype=dtype, sizes=sizes, tolerance=tolerance)


@LONG
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mlbench_0a(collective_sweep, tolerance, distbench, dtype):
    """MLBench task 0a: ``numpy.logspace(0, 8, num=80)`` elements, 100 times each, up to 400 MB.

    On CPUs up to 1 MiB: the larger ones, 100 times each, take minutes over gloo; test_mlbench.py has them.
    """
    cap = None if distbench.device == "cuda" else 2**20
    collective_sweep("all_reduce", dtype=dtype, sizes="mlbench", iterations=100, max_bytes=cap, tolerance=tolerance)
