"""Every other collective over message sizes, each element checked; all_reduce has a file of its own.

On CPUs four sizes from 256 B to 1 MiB; with `--distbench-full` all powers of two from 4 B to 64 MiB. On GPUs 1 KiB to
8 GiB, as their memory allows.
"""

import pytest

SENDING = [
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_v",
    "send_recv",
]


@pytest.mark.parametrize("collective", [*SENDING, "barrier"])
def test_operation(collective_sweep, tolerance, distbench, collective):
    sizes = "gpu" if distbench.device == "cuda" else "small"
    collective_sweep(collective, sizes=sizes, tolerance=tolerance)


@pytest.mark.full
@pytest.mark.parametrize("collective", SENDING)
def test_all_sizes(collective_sweep, tolerance, collective):
    collective_sweep(collective, sizes="powers", tolerance=tolerance)
