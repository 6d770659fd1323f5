"""ResNet-50, MobileNetV2, VGG-16 and an autoencoder that compresses images.

First weights: convolutions as He et al., arXiv 1502.01852, section 2.2, in the form for the backward pass; linear
layers by a normal distribution of deviation 0.01 as Simonyan and Zisserman, arXiv 1409.1556, section 3.1, and for
ResNet-50 as Goyal et al., arXiv 1706.02677, section 5.1; biases 0 in all of them.

ResNet-50 (He et al., arXiv 1512.03385, table 1): the stride stands in a block's 3x3 convolution, as in torchvision's
``models/resnet.py``; Keras has it in the first, which computes a little less with the same parameters. Keras' own
(``keras_applications/resnet50.py``) has biases in its convolutions, and so has report 003's: 23,555,082 parameters in
214 tensors for 10 classes, 23,739,492 for 100. Without biases there are 23,528,522 in 161.

MobileNetV2 (Sandler et al., arXiv 1801.04381, table 2): little computing for its many small tensors, so that
communication weighs more. 2,236,682 trainable parameters in 158 tensors for 10 classes, as report 003 has it. For 100
it prints 2,386,084 and calls them trainable: it is what Keras sums up as the model's total, the 2,351,972 trainable
ones and the 34,112 running means and variances of batch normalisation. Dropout before the last layer is torchvision's
(``models/mobilenetv2.py``); Keras has none.

VGG-16 (Simonyan and Zisserman, arXiv 1409.1556, table 1, configuration D): many parameters in few tensors, most of them
in one linear layer. For images of 224 x 224 and 1000 classes it has 138,357,544 parameters in 32 tensors: 553 MB
(528 MiB) in float32, which report 001 calls about 500 MB. The mean over an adaptive grid lets it take images of another
size, as in torchvision's ``models/vgg.py``. The paper begins deep configurations with weights of a trained shallow one;
here all begin at random, after arXiv 1502.01852.

The autoencoder: report 003 tells of its model that it has transposed convolutions, 34 trainable tensors and 11,238,723
parameters, and neither how it is made nor where it is published. This one has exactly as many of both, so that as many
bytes are sent in as many tensors. Its layers are ours: 3x3 convolutions in pairs, one to the code, transposed ones
back, and a 1x1 convolution to three colours, all with biases. Its widths were searched for: of 214,200 sets of five and
a code it alone has these counts, and networks of other kinds have them too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

LINEAR_DEVIATION = 0.01


def initialise(model: nn.Module) -> None:
    """Give new weights and biases to convolutions, transposed ones too, and to linear layers.

    Batch normalisation keeps torch's: scales of 1 and shifts of 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=LINEAR_DEVIATION)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)


RESNET_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
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
        for stage, (width, number) in enumerate(RESNET_STAGES):
            for block in range(number):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(inputs, width, stride=stride, bias=bias))
                inputs = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W) -> (N, classes)
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, stride=2, padding=1)
        scores: torch.Tensor = self.head(self.blocks(x).mean((2, 3)))
        return scores


MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
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
        for expansion, outputs, number, first_stride in MOBILENET_STAGES:
            for block in range(number):
                stride = 1 if block else first_stride
                layers.append(InvertedResidual(inputs, outputs, stride=stride, expansion=expansion))
                inputs = outputs
        self.features = nn.Sequential(*layers, *_convolution(inputs, LAST, 1))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(LAST, classes))
        initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W) -> (N, classes)
        scores: torch.Tensor = self.head(self.features(images).mean((2, 3)))
        return scores


VGG_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
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
        for widths in VGG_WIDTHS:
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
        initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W) -> (N, classes)
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores


AUTOENCODER_WIDTHS = (32, 48, 48, 192, 768)
"""Of the pairs of convolutions, from the image inwards. The first of each pair halves the image."""

CODE = 192
"""Channels of the code."""


class Autoencoder(nn.Module):
    """Images to images, through a code that is a 32nd as high and as wide."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in AUTOENCODER_WIDTHS:
            halving = nn.Conv2d(inputs, width, 3, stride=2, padding=1)
            layers += [halving, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
            inputs = width
        self.encoder = nn.Sequential(*layers, nn.Conv2d(inputs, CODE, 3, padding=1))
        layers = []
        inputs = CODE
        for width in reversed(AUTOENCODER_WIDTHS):
            layers += [nn.ConvTranspose2d(inputs, width, 3, stride=2, padding=1, output_padding=1), nn.ReLU()]
            inputs = width
        self.decoder = nn.Sequential(*layers, nn.Conv2d(inputs, 3, 1), nn.Sigmoid())
        initialise(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # (N, 3, H, W), H and W whole 32s -> the same
        restored: torch.Tensor = self.decoder(self.encoder(images))
        return restored
