"""What nccl-tests measures without options: 32 MiB, 20 calls in one breath, the mean over ranks, in and out of place.

`distbench report RUN.json --table collectives` prints its columns.
"""

import pytest

OUT = pytest.param(False, id="out-of-place", marks=pytest.mark.full)
PLACES = pytest.mark.parametrize("in_place", [OUT, pytest.param(True, id="in-place")])


@PLACES
def test_all_reduce(collective_sweep, tolerance, in_place):
    collective_sweep("all_reduce", sizes="nccl-tests", in_place=in_place, tolerance=tolerance)


@pytest.mark.full
@PLACES
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_others(collective_sweep, tolerance, collective, in_place):
    collective_sweep(collective, sizes="nccl-tests", in_place=in_place, tolerance=tolerance)
