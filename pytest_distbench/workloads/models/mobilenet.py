"""MobileNetV2: little computing for its many small tensors, so that communication weighs more.

Source: Sandler et al., arXiv 1801.04381, table 2. 2,236,682 trainable parameters in 158 tensors for 10 classes, as
report 003 has it. For 100 it prints 2,386,084: the 2,351,972 trainable ones and the 34,112 running means and variances.
"""

from __future__ import annotations

import torch
from torch import nn

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, width, number and first stride of the blocks: the paper's t, c, n and s."""

STEM, LAST = 32, 1280


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """With batch normalisation and the ReLU that ends at 6."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Widen, convolve each channel by itself, narrow; without a nonlinearity at the end."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * inputs
        self.has_shortcut = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *(_convolution(inputs, wide, 1) if expansion > 1 else []),
            *_convolution(wide, wide, 3, stride=stride, groups=wide),
            *_convolution(wide, outputs, 1)[:-1],
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, inputs, H, W) -> (N, outputs, H / stride, W / stride)
        y: torch.Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


class MobileNetV2(nn.Module):
    """Images to the scores of classes; five halvings of the image, then its mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = _convolution(3, STEM, 3, stride=2)
        inputs = STEM
        for expansion, outputs, number, first_stride in STAGES:
            for block in range(number):
                stride = 1 if block else first_stride
                layers.append(InvertedResidual(inputs, outputs, stride=stride, expansion=expansion))
                inputs = outputs
        self.features = nn.Sequential(*layers, *_convolution(inputs, LAST, 1))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(LAST, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W) -> (N, classes)
        scores: torch.Tensor = self.head(self.features(images).mean((2, 3)))
        return scores
