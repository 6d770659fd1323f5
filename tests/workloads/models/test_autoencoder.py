"""The image-compression model beside report 003's."""

from __future__ import annotations

import torch
from torch import nn

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.autoencoder import Autoencoder


def test_it_has_the_parameters_and_tensors_of_the_report_and_transposed_convolutions() -> None:
    with torch.device("meta"):
        model = Autoencoder()

    assert count(model) == (11_238_723, 34)
    assert sum(isinstance(layer, nn.ConvTranspose2d) for layer in model.modules()) == 5


def test_images_come_back_in_their_shape_through_a_code_a_32nd_as_high_and_as_wide() -> None:
    with torch.device("meta"):
        model, images = Autoencoder(), torch.rand(2, 3, 96, 32)

        assert model.encoder(images).shape == (2, 192, 3, 1)
        assert model(images).shape == images.shape
