"""The ways in which NCCL can send, side by side: `distbench report RUN.json --table transports`."""

import pytest


@pytest.mark.gpu
@pytest.mark.full
@pytest.mark.parametrize("transports", [["ring", "tree"], ["ll", "simple"], ["shm", "socket"]], ids="-".join)
def test_all_reduce(collective_sweep, tolerance, transports):
    collective_sweep("all_reduce", sizes="small", transport=transports, tolerance=tolerance)
