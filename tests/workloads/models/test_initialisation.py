"""First weights have the deviations of their sources."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_distbench.workloads.models.initialisation import initialise


def test_convolutions_keep_the_scale_and_linear_layers_begin_small() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 128, 3), nn.ConvTranspose2d(128, 64, 3), nn.BatchNorm2d(64), nn.Linear(512, 64))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    initialise(model)
    deviations = [float(layer.weight.detach().std()) for layer in model]
    biases = [float(layer.bias.detach().abs().max()) for layer in model]
    of_convolutions = (2 / (128 * 9)) ** 0.5  # fan-out of the one is what the other reads: 128 channels

    assert deviations == pytest.approx([of_convolutions, of_convolutions, 0, 0.01], rel=0.02)
    assert biases == [0, 0, 7, 0]  # batch normalisation is left alone


def test_a_layer_without_biases_is_fine() -> None:
    initialise(nn.Linear(2, 2, bias=False))
