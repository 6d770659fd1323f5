"""torch's hooks that compress gradients: what a step takes, what it sends, and how wrong the gradient becomes."""

import pytest

LONG = pytest.mark.full


@pytest.mark.parametrize(
    "hook", ["none", "fp16", pytest.param("bf16", marks=LONG), pytest.param("powersgd", marks=LONG)]
)
def test_compression(communication, tolerance, distbench, hook):
    """Four square layers: 248 wide on CPUs, one bucket of DDP, 4096 on GPUs."""
    communication.compression(hook, width=4096 if distbench.device == "cuda" else 248, tolerance=tolerance)
