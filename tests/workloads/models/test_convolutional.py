"""ResNets, MobileNetV2, VGG-16 and an autoencoder that compresses images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.convolutional import VGG16, Autoencoder, MobileNetV2, initialise


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


def test_models_are_of_the_reports_size_and_begin_small() -> None:
    with torch.device("meta"):
        assert count(MobileNetV2(10)) == (2_236_682, 158)

    with torch.device("meta"):
        model = VGG16(1000)

    assert count(model) == (138_357_544, 32)
    assert model.classifier[0].weight.numel() / count(model).parameters > 0.7

    with torch.device("meta"):
        model = Autoencoder()

    assert count(model) == (11_238_723, 34)
    assert sum(isinstance(layer, nn.ConvTranspose2d) for layer in model.modules()) == 5

    with torch.device("meta"):
        model, images = Autoencoder(), torch.rand(2, 3, 96, 32)

        assert model.encoder(images).shape == (2, 192, 3, 1)
        assert model(images).shape == images.shape


def test_a_layer_without_biases_is_fine() -> None:
    initialise(nn.Linear(2, 2, bias=False))


def test_the_report_counts_running_statistics_too_where_there_are_100_classes() -> None:
    with torch.device("meta"):
        model = MobileNetV2(100)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    statistics = sum(n.running_mean.numel() + n.running_var.numel() for n in norms)  # type: ignore[union-attr]

    assert (count(model), statistics) == ((2_351_972, 158), 34_112)
    assert count(model).parameters + statistics == 2_386_084
