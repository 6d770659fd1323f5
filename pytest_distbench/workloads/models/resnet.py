"""ResNet-50: residual networks of bottleneck blocks.

Source: He et al., arXiv 1512.03385, table 1; the stride stands in a block's 3x3 convolution, as in torchvision. Keras'
own ResNet50 has biases in its convolutions, and so has report 003's: 23,555,082 parameters in 214 tensors for 10
classes, 23,739,492 for 100. Without biases there are 23,528,522 in 161.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the blocks of each stage; the first block of each but the first halves the image."""

EXPANSION = 4
"""A block's output is so many times as wide as its inside."""


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, width: int, *, stride: int, bias: bool) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=bias), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=bias), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=bias)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, inputs, H, W) -> (N, 4 width, H / stride, W / stride)
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """Images to the scores of classes; five halvings of the image, then its mean.

    Args:
        classes: to tell apart.
        bias: whether convolutions have biases, as Keras' do.
    """

    def __init__(self, classes: int, *, bias: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=bias)
        self.norm = nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, (width, number) in enumerate(STAGES):
            for block in range(number):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(inputs, width, stride=stride, bias=bias))
                inputs = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al., arXiv 1502.01852
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W) -> (N, classes)
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, stride=2, padding=1)
        scores: torch.Tensor = self.head(self.blocks(x).mean((2, 3)))
        return scores
