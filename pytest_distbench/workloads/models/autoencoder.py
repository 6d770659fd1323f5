"""Image compression by convolutions, and back by transposed convolutions: more parameters in fewer tensors.

Report 003 tells of its model that it has transposed convolutions, 34 trainable tensors and 11,238,723 parameters, and
neither how it is made nor where it is published. This one has exactly as many of both, so that as many bytes are sent
in as many tensors. Its layers are ours: 3x3 convolutions in pairs, one to the code, transposed ones back, and a 1x1
convolution to three colours, all with biases. Its widths were searched for: of 214,200 sets of five and a code it alone
has these counts, and networks of other kinds have them too.
"""

from __future__ import annotations

import torch
from torch import nn

from pytest_distbench.workloads.models.initialisation import initialise

WIDTHS = (32, 48, 48, 192, 768)
"""Of the pairs of convolutions, from the image inwards. The first of each pair halves the image."""

CODE = 192
"""Channels of the code."""


class Autoencoder(nn.Module):
    """Images to images, through a code that is a 32nd as high and as wide."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in WIDTHS:
            halving = nn.Conv2d(inputs, width, 3, stride=2, padding=1)
            layers += [halving, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
            inputs = width
        self.encoder = nn.Sequential(*layers, nn.Conv2d(inputs, CODE, 3, padding=1))
        layers = []
        inputs = CODE
        for width in reversed(WIDTHS):
            layers += [nn.ConvTranspose2d(inputs, width, 3, stride=2, padding=1, output_padding=1), nn.ReLU()]
            inputs = width
        self.decoder = nn.Sequential(*layers, nn.Conv2d(inputs, 3, 1), nn.Sigmoid())
        initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W), H and W whole 32s -> the same
        restored: torch.Tensor = self.decoder(self.encoder(images))
        return restored
