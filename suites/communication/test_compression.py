"""torch's hooks that compress gradients: what a step takes, what it sends, and how wrong the gradient becomes."""

import pytest


@pytest.mark.parametrize("hook", ["none", "fp16", "bf16", "powersgd"])
def test_compression(communication, tolerance, distbench, hook):
    """Four square layers: 248 wide on CPUs, one bucket of DDP, 4096 on GPUs."""
    communication.compression(hook, width=4096 if distbench.device == "cuda" else 248, tolerance=tolerance)
