"""Models of the benchmark reports in plain torch, and the table of them: a new model is a row.

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

The autoencoder: report 003 says that its model has transposed convolutions, 34 trainable tensors and 11,238,723
parameters, but neither how it is made nor where it is published. This one has exactly as many of both, so that as many
bytes are sent in as many tensors. Its layers are ours: 3x3 convolutions in pairs, one to the code, transposed ones
back, and a 1x1 convolution to three colours, all with biases. Its widths were searched for: of 214,200 sets of five and
a code it alone has these counts, and networks of other kinds have them too.

The transformer is a decoder alone as GPT-2's, without dropout, positions, biases in attention and a last normalisation
(Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): pre-norm blocks of causal attention and a
feed-forward part four times as wide, with GELU. Weights begin as in its ``src/model.py`` and, before shortcuts, as in
section 2.3. Embedding and head have weights of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.errors import look_up
from pytest_distbench.worker.notebook import check_whole

LINEAR_DEVIATION = 0.01


def initialise(model: nn.Module) -> None:
    """Set new weights and biases in convolutions, transposed ones too, and in linear layers.

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
"""Width and number of blocks of each stage; every stage but the first begins by halving the image."""

EXPANSION = 4  # a block's output is so many times as wide as its inside


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut, which is projected if the shape changes."""

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
    """Maps images to scores of classes; five halvings of the image, then its mean.

    Args:
        classes: number of classes.
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
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Widens, convolves each channel by itself, and narrows without a nonlinearity at the end."""

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
    """Maps images to scores of classes; five halvings of the image, then its mean."""

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
"""Widths of the 3x3 convolutions between two halvings of the image."""

GRID = 7  # edge of what the linear layers see, as of an image of 224


class VGG16(nn.Module):
    """Maps images of at least 32 x 32 to scores of classes.

    Args:
        classes: number of classes.
        width: width of the two hidden linear layers; the paper's 4096 is most of the network.
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
"""Widths of the pairs of convolutions, from the image inwards. The first of each pair halves the image."""

CODE = 192  # channels of the code


class Autoencoder(nn.Module):
    """Maps images to images, through a code that is a 32nd as high and as wide."""

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


@dataclass(frozen=True)
class Size:
    """Size of a transformer, and of the sequences that a rank trains on in a step."""

    width: int
    heads: int
    blocks: int
    tokens: int
    length: int
    batch: int


TRANSFORMER_DEVIATION = 0.02
"""Standard deviation of initial weights; divided by the square root of their number in layers before a shortcut."""

SMALL = Size(width=128, heads=4, blocks=4, tokens=64, length=32, batch=4)
"""A size of 0.8 million parameters: a step takes a CPU milliseconds."""

LARGE = Size(width=768, heads=12, blocks=12, tokens=16384, length=1024, batch=8)
"""A size of 110 million parameters, as GPT-2's smallest."""


class Block(nn.Module):
    """Causal attention and a feed-forward part, each with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, T, width) -> the same
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        z: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return z


class Transformer(nn.Module):
    """Maps tokens to the scores of the next ones."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.blocks))
        self.head = nn.Linear(size.width, size.tokens)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                adds_to_shortcut = name.endswith((".out.weight", ".down.weight"))
                nn.init.normal_(
                    parameter, std=TRANSFORMER_DEVIATION / (math.sqrt(2 * size.blocks) if adds_to_shortcut else 1)
                )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # (N, T) -> (N, T, size.tokens)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(x)
        return scores


_Batch = tuple[torch.Tensor, torch.Tensor]  # what a model is given, and what it is to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the table.

    Attributes:
        source: paper of the model, and report that measured it.
        make: takes a number of classes, and the model's own options by name; returns the model.
        batch: takes numbers of samples, of pixels of an image's edge, and of classes; makes random inputs and targets.
        loss: takes the model's outputs and the targets; returns a scalar.
        samples: samples per rank and step in that report.
        edge: width and height of that report's images, in pixels, or 0 without images.
        classes: number of classes in that report, or 0 without labels.
        dtype: dtype of a forward pass under autocast; parameters are float32.
    """

    source: str
    make: Callable[..., nn.Module]
    batch: Callable[[int, int, int], _Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy
    samples: int
    edge: int = 0
    classes: int = 0
    dtype: torch.dtype = torch.float32


def _images(samples: int, edge: int, classes: int) -> _Batch:
    return (torch.rand(samples, 3, edge, edge), torch.randint(0, classes, (samples,)))


def _same_images(samples: int, edge: int, classes: int) -> _Batch:
    images, _ = _images(samples, edge, max(classes, 1))
    return images, images


def _tokens(size: Size) -> Callable[[int, int, int], _Batch]:
    def make(samples: int, edge: int, classes: int) -> _Batch:
        del edge, classes
        text = torch.randint(0, size.tokens, (samples, size.length + 1))
        return (text[:, :-1], text[:, 1:])

    return make


def _next_token(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())


MODELS = {
    "resnet50": Model(
        source="He et al., arXiv 1512.03385, with convolution biases as in Keras; reports 001, 003",
        make=ResNet50,
        batch=_images,
        samples=64,
        edge=256,
        classes=100,
    ),
    "vgg16": Model(
        source="Simonyan and Zisserman, arXiv 1409.1556, configuration D; report 001",
        make=VGG16,
        batch=_images,
        samples=32,
        edge=224,
        classes=1000,
    ),
    "mobilenet_v2": Model(
        source="Sandler et al., arXiv 1801.04381; report 003",
        make=MobileNetV2,
        batch=_images,
        samples=64,
        edge=256,
        classes=100,
    ),
    "autoencoder": Model(
        source="convolutions and transposed convolutions, as many as in report 003's image compression",
        make=lambda classes: Autoencoder(),
        batch=_same_images,
        loss=F.mse_loss,
        samples=64,
        edge=256,
    ),
    "gpt": Model(
        source="Radford et al. 2019 (GPT-2's smallest)",
        make=lambda classes: Transformer(LARGE),
        batch=_tokens(LARGE),
        loss=_next_token,
        samples=LARGE.batch,
        dtype=torch.bfloat16,
    ),
    "gpt_small": Model(
        source="as gpt, of 0.8 million parameters and in float32",
        make=lambda classes: Transformer(SMALL),
        batch=_tokens(SMALL),
        loss=_next_token,
        samples=SMALL.batch,
    ),
}
"""Models by the name that tests give."""


def model_named(name: object) -> Model:
    """Look a model up."""
    return look_up(MODELS, name, "model")


def build(name: object, *, classes: int | None = None, **options: object) -> nn.Module:
    """Make a model.

    Args:
        name: name in the table.
        classes: number of classes, by default as many as the model's report had. A model without classes ignores it.
        options: options that this model alone has, such as ``bias=False`` of ``resnet50``.

    Raises:
        ConfigurationError: there is no such model.
        TypeError: it has no such option.
        RecordingError: classes are no whole number of at least 1.
    """
    row = model_named(name)
    given = row.classes if classes is None else check_whole("build(...)", "classes", classes, least=1)
    return row.make(given, **options)


def count(model: nn.Module) -> tuple[int, int]:
    """Number of trainable parameters of a model, and of their tensors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return sum(p.numel() for p in trained), len(trained)
