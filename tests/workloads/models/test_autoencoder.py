"""The image-compression model beside report 003's."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.autoencoder import Autoencoder


def test_it_has_the_tensors_of_the_report_and_nearly_its_parameters() -> None:
    with torch.device("meta"):
        found = count(Autoencoder())

    assert found == (11_730_051, 34)
    assert found.parameters / 11_238_723 == pytest.approx(1.044, abs=1e-3)


def test_images_come_back_in_their_shape() -> None:
    with torch.device("meta"):
        assert Autoencoder()(torch.rand(2, 3, 48, 32)).shape == (2, 3, 48, 32)
