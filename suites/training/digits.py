"""The 1797 handwritten digits that scikit-learn ships: real images, no download; 1437 to train on, 360 to test."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

TRAINING_SAMPLES = 1437


def shuffled_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (1797, 8, 8), 0. to 16., and labels (1797,): always in the same shuffled order."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(bunch.images, dtype=torch.float32)[order], torch.tensor(bunch.target)[order]


def split(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training inputs and labels, test inputs and labels."""
    n = TRAINING_SAMPLES
    return inputs[:n], labels[:n], inputs[n:], labels[n:]


def normalised(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images (1437, 1, 8, 8) and labels, test images (360, 1, 8, 8) and labels."""
    pixels, labels = shuffled_digits()
    images = (pixels.unsqueeze(1).to(device) / 16 - 0.305) / 0.376  # mean and standard deviation of the whole set
    return split(images, labels.to(device))


def shared(inputs: torch.Tensor, test_inputs: torch.Tensor) -> int:
    """Test inputs that are trained on: no two of these images are equal."""
    known = {one.numpy().tobytes() for one in inputs.cpu()}
    return sum(one.numpy().tobytes() in known for one in test_inputs.cpu())
