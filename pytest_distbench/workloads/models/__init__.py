"""Models of the benchmark reports in plain torch: a new model is a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.errors import look_up
from pytest_distbench.workloads.models.autoencoder import Autoencoder
from pytest_distbench.workloads.models.mobilenet import MobileNetV2
from pytest_distbench.workloads.models.resnet import ResNet50
from pytest_distbench.workloads.models.transformer import LARGE, SMALL, Size, Transformer
from pytest_distbench.workloads.models.vgg import VGG16


class Batch(NamedTuple):
    """What a model is given, and what it is to answer."""

    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model.

    Attributes:
        source: paper, and report that measured it.
        make: makes it for so many classes; one without classes passes them over.
        batch: makes random inputs and targets: so many samples, and the edge of an image in pixels.
        loss: of the model's outputs and the targets.
    """

    source: str
    make: Callable[[int], nn.Module]
    batch: Callable[[int, int, int], Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy


def _images(samples: int, edge: int, classes: int) -> Batch:
    return Batch(torch.rand(samples, 3, edge, edge), torch.randint(0, classes, (samples,)))


def _same_images(samples: int, edge: int, classes: int) -> Batch:
    del classes
    images = torch.rand(samples, 3, edge, edge)
    return Batch(images, images)


def _tokens(size: Size) -> Callable[[int, int, int], Batch]:
    def make(samples: int, edge: int, classes: int) -> Batch:
        del edge, classes
        text = torch.randint(0, size.tokens, (samples, size.length + 1))
        return Batch(text[:, :-1], text[:, 1:])

    return make


def _next_token(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())


MODELS: Mapping[str, Model] = {
    "resnet50": Model(
        source="He et al., arXiv 1512.03385, with convolution biases as in Keras; reports 001, 003",
        make=lambda classes: ResNet50(classes),
        batch=_images,
    ),
    "vgg16": Model(
        source="Simonyan and Zisserman, arXiv 1409.1556, configuration D; report 001",
        make=lambda classes: VGG16(classes),
        batch=_images,
    ),
    "mobilenet_v2": Model(
        source="Sandler et al., arXiv 1801.04381; report 003",
        make=lambda classes: MobileNetV2(classes),
        batch=_images,
    ),
    "autoencoder": Model(
        source="convolutions and transposed convolutions; after report 003's image compression",
        make=lambda classes: Autoencoder(),
        batch=_same_images,
        loss=F.mse_loss,
    ),
    "gpt": Model(
        source="Radford et al. 2019 (GPT-2's smallest)",
        make=lambda classes: Transformer(LARGE),
        batch=_tokens(LARGE),
        loss=_next_token,
    ),
    "gpt_small": Model(
        source="as gpt, of 0.8 million parameters",
        make=lambda classes: Transformer(SMALL),
        batch=_tokens(SMALL),
        loss=_next_token,
    ),
}
"""By the name that tests give."""


def model_named(name: object) -> Model:
    """Look a model up."""
    return look_up(MODELS, name, "model")


class Count(NamedTuple):
    """How large a model is: what is trained, and in how many tensors."""

    parameters: int
    tensors: int


def count(model: nn.Module) -> Count:
    """Trainable parameters and trainable tensors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return Count(sum(p.numel() for p in trained), len(trained))
