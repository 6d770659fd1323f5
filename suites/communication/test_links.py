"""Every pair of ranks, one at a time: latency and bandwidth of each link."""

import pytest


@pytest.mark.world_size(min=2)
@pytest.mark.parametrize("pattern", ["ping-pong", pytest.param("one-way", marks=pytest.mark.full)])
def test_links(communication, tolerance, distbench, pattern):
    """8 B and 1 MiB on CPUs, 8 B and 64 MiB on GPUs."""
    if distbench.backend == "fake":
        pytest.skip("the backend fake transfers no data: a link has no time")
    size = 64 * 2**20 if distbench.device == "cuda" else 2**20
    communication.links(pattern=pattern, bandwidth_bytes=size, tolerance=tolerance)
