"""The table of models: each can be trained."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.models import MODELS, model_named


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "mobilenet_v2", "autoencoder", "gpt", "gpt_small"])
@pytest.mark.parametrize("edge", [32, 224])
def test_a_loss_comes_of_a_batch(name: str, edge: int) -> None:
    row = model_named(name)
    with torch.device("meta"):
        batch = row.batch(2, edge, 10)
        loss = row.loss(row.make(10)(batch.inputs), batch.targets)

    assert loss.shape == ()


@pytest.mark.parametrize("name", ["mobilenet_v2", "gpt_small"])
def test_a_batch_is_learnt(name: str) -> None:
    torch.manual_seed(0)
    row = model_named(name)
    model, batch = row.make(10), row.batch(4, 32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = row.loss(model(batch.inputs), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["resnet", 3])
def test_another_model_is_refused_with_those_there_are(name: object) -> None:
    with pytest.raises(ConfigurationError, match="known are resnet50, vgg16, mobilenet_v2"):
        model_named(name)


def test_every_model_says_where_it_is_from() -> None:
    assert all(row.source for row in MODELS.values())
