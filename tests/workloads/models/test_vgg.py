"""VGG-16 in the size that its paper prints."""

from __future__ import annotations

import torch

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.vgg import VGG16


def test_most_of_it_is_one_layer() -> None:
    with torch.device("meta"):
        model = VGG16(1000)

    assert count(model) == (138_357_544, 32)
    assert model.classifier[0].weight.numel() / count(model).parameters > 0.7
