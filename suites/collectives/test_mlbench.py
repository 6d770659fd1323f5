"""The whole of MLBench task 0a: 80 steps from 1 to 10^8 elements, 100 times each. Minutes on CPUs."""

import pytest


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_task_0a(collective_sweep, tolerance, dtype):
    collective_sweep("all_reduce", dtype=dtype, sizes="mlbench", tolerance=tolerance)
