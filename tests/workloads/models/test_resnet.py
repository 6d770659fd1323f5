"""ResNet-50 in the sizes that its sources print."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.resnet import ResNet50


@pytest.mark.parametrize(
    ("classes", "bias", "parameters", "tensors"),
    [(10, True, 23_555_082, 214), (100, True, 23_739_492, 214), (10, False, 23_528_522, 161)],
)
def test_report_003_has_convolution_biases(classes: int, bias: bool, parameters: int, tensors: int) -> None:
    with torch.device("meta"):
        assert count(ResNet50(classes, bias=bias)) == (parameters, tensors)
