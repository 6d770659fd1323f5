"""Image compression by convolutions, and back by transposed convolutions: more parameters in fewer tensors.

Report 003 tells of its model that it has transposed convolutions, 34 trainable tensors and 11,238,723 parameters, and
not how it is made. This one is what such networks usually are (pairs of 3x3 convolutions with biases, the first of each
pair halving the image and doubling the width, then the same back): 34 tensors too, and 11,730,051 parameters, 4 % more.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTHS = (64, 128, 256, 512)
"""Of the pairs of convolutions, from the image inwards."""


class Autoencoder(nn.Module):
    """Images to images, through a code of 512 channels that is a sixteenth as high and as wide."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in WIDTHS:
            halving = nn.Conv2d(inputs, width, 3, stride=2, padding=1)
            layers += [halving, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
            inputs = width
        self.encoder = nn.Sequential(*layers)
        layers = []
        for width in reversed(WIDTHS):
            doubling = nn.ConvTranspose2d(width, width, 3, stride=2, padding=1, output_padding=1)
            layers += [nn.ConvTranspose2d(inputs, width, 3, padding=1), nn.ReLU(), doubling, nn.ReLU()]
            inputs = width
        self.decoder = nn.Sequential(*layers, nn.Conv2d(inputs, 3, 3, padding=1), nn.Sigmoid())

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W), H and W whole sixteens -> the same
        restored: torch.Tensor = self.decoder(self.encoder(images))
        return restored
