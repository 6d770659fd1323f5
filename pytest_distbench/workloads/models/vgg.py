"""VGG-16: many parameters in few tensors, most of them in one linear layer.

Source: Simonyan and Zisserman, arXiv 1409.1556, table 1, configuration D. For images of 224 x 224 and 1000 classes it
has 138,357,544 parameters in 32 tensors: 553 MB in float32, which report 001 calls about 500 MB. The mean over an
adaptive grid lets it take images of another size, as in torchvision.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Of the 3x3 convolutions between two halvings of the image."""

GRID = 7
"""Edge of what the linear layers see, as of an image of 224."""


class VGG16(nn.Module):
    """Images of at least 32 x 32 to the scores of classes.

    Args:
        classes: to tell apart.
        width: of the two hidden linear layers; the paper's 4096 is most of the network.
    """

    def __init__(self, classes: int, *, width: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for widths in WIDTHS:
            for outputs in widths:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(GRID), nn.Flatten())
        self.classifier = nn.Sequential(
            *(nn.Linear(GRID * GRID * inputs, width), nn.ReLU(), nn.Dropout()),
            *(nn.Linear(width, width), nn.ReLU(), nn.Dropout()),
            nn.Linear(width, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W) -> (N, classes)
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores
