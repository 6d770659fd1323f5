"""Models of the benchmark reports in plain torch: a new model is a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.errors import look_up
from pytest_distbench.worker.notebook import check_whole
from pytest_distbench.workloads.models.convolutional import (
    VGG16,
    Autoencoder,
    MobileNetV2,
    ResNet50,
)
from pytest_distbench.workloads.models.transformer import LARGE, SMALL, Size, Transformer


class Batch(NamedTuple):
    """What a model is given, and what it is to answer."""

    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model.

    Attributes:
        source: paper, and report that measured it.
        make: makes it for so many classes, and takes options of its own by name; one without classes passes them over.
        batch: makes random inputs and targets: so many samples, the edge of an image in pixels, and classes.
        loss: of the model's outputs and the targets.
        samples: of a rank in a step, as the report measured it.
        edge: of the report's images, in pixels; 0: it reads no images.
        classes: of the report's labels; 0: it has none.
        dtype: of the arithmetic of a forward pass under autocast; parameters are float32.
    """

    source: str
    make: Callable[..., nn.Module]
    batch: Callable[[int, int, int], Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy
    samples: int
    edge: int = 0
    classes: int = 0
    dtype: torch.dtype = torch.float32


def _images(samples: int, edge: int, classes: int) -> Batch:
    return Batch(torch.rand(samples, 3, edge, edge), torch.randint(0, classes, (samples,)))


def _same_images(samples: int, edge: int, classes: int) -> Batch:
    images = _images(samples, edge, max(classes, 1)).inputs
    return Batch(images, images)


def _tokens(size: Size) -> Callable[[int, int, int], Batch]:
    def make(samples: int, edge: int, classes: int) -> Batch:
        del edge, classes
        text = torch.randint(0, size.tokens, (samples, size.length + 1))
        return Batch(text[:, :-1], text[:, 1:])

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
"""By the name that tests give."""


def model_named(name: object) -> Model:
    """Look a model up."""
    return look_up(MODELS, name, "model")


def build(name: object, *, classes: int | None = None, **options: object) -> nn.Module:
    """Make a model.

    Args:
        name: of a row.
        classes: to tell apart; None: as many as its report had. A model without classes passes them over.
        options: of that model alone, such as ``bias=False`` of ``resnet50``.

    Raises:
        ConfigurationError: there is no such model.
        TypeError: it has no such option.
        RecordingError: classes are no whole number of at least 1.
    """
    row = model_named(name)
    given = row.classes if classes is None else check_whole("build(...)", "classes", classes, least=1)
    return row.make(given, **options)


class Count(NamedTuple):
    """How large a model is: what is trained, and in how many tensors."""

    parameters: int
    tensors: int


def count(model: nn.Module) -> Count:
    """Trainable parameters and trainable tensors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return Count(sum(p.numel() for p in trained), len(trained))
