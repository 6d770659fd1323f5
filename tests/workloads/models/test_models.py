"""The table of models: each can be made and trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_distbench.errors import ConfigurationError, RecordingError
from pytest_distbench.workloads.models import MODELS, build, count, model_named

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.mark.parametrize("name", MODELS)
def test_the_step_that_a_report_measured_can_be_taken(name: str) -> None:
    row = model_named(name)
    with torch.device("meta"):
        batch = row.batch(row.samples, row.edge, row.classes)
        outputs = build(name)(batch.inputs)

    if row.classes:
        assert outputs.shape == (row.samples, row.classes)
    assert len(outputs) == len(batch.targets) == row.samples
    assert row.loss(outputs, batch.targets).shape == ()


@pytest.mark.parametrize(
    ("name", "shapes", "options"),
    [
        ("resnet50", {"convolutional.RESNET_STAGES": ((8, 1), (16, 2))}, {}),
        ("vgg16", {"convolutional.VGG_WIDTHS": ((8, 8), (16, 16, 16))}, {"width": 16}),
        (
            "mobilenet_v2",
            {"convolutional.MOBILENET_STAGES": ((1, 8, 1, 1), (6, 16, 2, 2)), "convolutional.LAST": 32},
            {},
        ),
        ("autoencoder", {"convolutional.AUTOENCODER_WIDTHS": (8, 16, 32), "convolutional.CODE": 8}, {}),
        ("gpt_small", {}, {}),
    ],
)
def test_a_batch_is_learnt_by_a_small_variant(
    name: str, shapes: dict[str, object], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in shapes.items():
        monkeypatch.setattr(f"pytest_distbench.workloads.models.{constant}", value)
    torch.manual_seed(0)
    row = model_named(name)
    model, batch = build(name, classes=10, **options), row.batch(4, 32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = row.loss(model(batch.inputs), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("resnet", {}, ConfigurationError, "unknown model 'resnet': known are resnet50, vgg16, mobilenet_v2"),
        (3, {}, ConfigurationError, "unknown model 3: known are"),
        ("vgg16", {"classes": 0}, RecordingError, "classes=0; wanted a whole number of at least 1"),
    ],
)
def test_what_makes_no_model_is_refused(
    name: object, given: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(name, **given)  # type: ignore[arg-type]


def test_the_examples_of_the_page_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr("pytest_distbench.workloads.models.MODELS", dict(MODELS))
    for example in examples:
        exec(example, {})

    assert len(examples) == 2


def test_every_model_is_on_the_page_with_its_counts_and_origin() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    for name, row in MODELS.items():
        with torch.device("meta"):
            parameters, tensors = count(build(name))
        [line] = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
        step = f"{row.samples} (images )?of {row.edge} x" if row.edge else f"{row.samples} (sequences )?of"

        assert f"{parameters:,}" in line
        assert f"| {tensors} |" in line
        assert re.search(step, line)

    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == MODELS.keys()

    assert all(row.source for row in MODELS.values())

    model = nn.Linear(3, 2)
    model.bias.requires_grad_(requires_grad=False)
    assert count(model) == (6, 1)

    with torch.device("meta"):
        assert count(build("resnet50", classes=10, bias=False)) == (23_528_522, 161)
