"""How fast a training is where the GPU computes: of the short trainings a step is Python's dispatch."""

import pytest


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_transformer(distbench, tolerance, way):
    """110 million parameters in bfloat16 on GPUs, 0.8 million on CPUs: tokens per second, MFU, and memory."""
    distbench.run("throughput.py::train", params={"way": way}, tolerance=tolerance)
