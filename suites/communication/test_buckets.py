"""The same bytes in 1 to 214 tensors: what it costs to send gradients one by one."""

import pytest

from pytest_distbench.workloads.gradients import RESNET50_BYTES


@pytest.mark.parametrize("calls", ["each", pytest.param("coalesced", marks=pytest.mark.full), "flattened"])
def test_buckets(communication, tolerance, distbench, calls):
    """4 MiB on CPUs; on GPUs the gradients of a ResNet-50."""
    message_bytes = RESNET50_BYTES if distbench.device == "cuda" else 4 * 2**20
    communication.buckets(message_bytes=message_bytes, calls=[calls], tolerance=tolerance)
