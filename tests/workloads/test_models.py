"""The models of the reports: each can be made and trained, and is of its report's size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_distbench.errors import ConfigurationError, RecordingError
from pytest_distbench.workloads import models
from pytest_distbench.workloads.models import MODELS, SMALL, Transformer, build, count

PAGE = (Path(__file__).parents[2] / "docs" / "trainings.md").read_text()
SECTION = PAGE.partition("## Models\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_step_that_a_report_measured_can_be_taken(name: str) -> None:
    row = models.model_named(name)
    with torch.device("meta"):
        inputs, targets = row.batch(row.samples, row.edge, row.classes)
        outputs = build(name)(inputs)

    if row.classes:
        assert outputs.shape == (row.samples, row.classes)
    assert len(outputs) == len(targets) == row.samples
    assert row.loss(outputs, targets).shape == ()


@pytest.mark.parametrize(
    ("name", "shapes", "options"),
    [
        ("resnet50", {"RESNET_STAGES": ((8, 1), (16, 2))}, {}),
        ("vgg16", {"VGG_WIDTHS": ((8, 8), (16, 16, 16))}, {"width": 16}),
        ("mobilenet_v2", {"MOBILENET_STAGES": ((1, 8, 1, 1), (6, 16, 2, 2)), "LAST": 32}, {}),
        ("autoencoder", {"AUTOENCODER_WIDTHS": (8, 16, 32), "CODE": 8}, {}),
        ("gpt_small", {}, {}),
    ],
)
def test_a_batch_is_learnt_by_a_small_variant(
    name: str, shapes: dict[str, object], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in shapes.items():
        monkeypatch.setattr(f"pytest_distbench.workloads.models.{constant}", value)
    torch.manual_seed(0)
    row = models.model_named(name)
    model, (inputs, targets) = build(name, classes=10, **options), row.batch(4, 32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = row.loss(model(inputs), targets)
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
    examples = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    monkeypatch.setattr("pytest_distbench.workloads.models.MODELS", dict(MODELS))
    for example in examples:
        exec(example, {})

    assert len(examples) == 2


def test_every_model_is_on_the_page_with_its_counts_and_origin() -> None:
    for name, row in MODELS.items():
        with torch.device("meta"):
            parameters, tensors = count(build(name))
        [line] = re.findall(rf"^\| `{name}` \|.*$", SECTION, re.MULTILINE)
        step = f"{row.samples} (images )?of {row.edge} x" if row.edge else f"{row.samples} (sequences )?of"

        assert f"{parameters:,}" in line
        assert f"| {tensors} |" in line
        assert re.search(step, line)

    assert set(re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)) == MODELS.keys()

    assert all(row.source for row in MODELS.values())

    model = nn.Linear(3, 2)
    model.bias.requires_grad_(requires_grad=False)
    assert count(model) == (6, 1)

    with torch.device("meta"):
        assert count(build("resnet50", classes=10, bias=False)) == (23_528_522, 161)


def test_convolutions_keep_the_scale_and_linear_layers_begin_small() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 128, 3), nn.ConvTranspose2d(128, 64, 3), nn.BatchNorm2d(64), nn.Linear(512, 64))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    models.initialise(model)
    deviations = [float(layer.weight.detach().std()) for layer in model]
    biases = [float(layer.bias.detach().abs().max()) for layer in model]
    of_convolutions = (2 / (128 * 9)) ** 0.5  # fan-out of the one is what the other reads: 128 channels

    assert deviations == pytest.approx([of_convolutions, of_convolutions, 0, 0.01], rel=0.02)
    assert biases == [0, 0, 7, 0]  # batch normalisation is left alone


def test_models_are_of_the_reports_size_and_begin_small() -> None:
    with torch.device("meta"):
        assert count(models.MobileNetV2(10)) == (2_236_682, 158)

    with torch.device("meta"):
        model = models.VGG16(1000)

    assert count(model) == (138_357_544, 32)
    assert model.classifier[0].weight.numel() / count(model)[0] > 0.7

    with torch.device("meta"):
        model = models.Autoencoder()

    assert count(model) == (11_238_723, 34)
    assert sum(isinstance(layer, nn.ConvTranspose2d) for layer in model.modules()) == 5

    with torch.device("meta"):
        model, images = models.Autoencoder(), torch.rand(2, 3, 96, 32)

        assert model.encoder(images).shape == (2, 192, 3, 1)
        assert model(images).shape == images.shape


def test_a_layer_without_biases_is_fine() -> None:
    models.initialise(nn.Linear(2, 2, bias=False))


def test_the_report_counts_running_statistics_too_where_there_are_100_classes() -> None:
    with torch.device("meta"):
        model = models.MobileNetV2(100)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    statistics = sum(n.running_mean.numel() + n.running_var.numel() for n in norms)  # type: ignore[union-attr]

    assert (count(model), statistics) == ((2_351_972, 158), 34_112)
    assert count(model)[0] + statistics == 2_386_084


@pytest.mark.parametrize(("size", "parameters", "tensors"), [(models.LARGE, 110_199_808, 147), (SMALL, 807_488, 51)])
def test_the_large_one_is_as_gpt_2s_smallest(size: models.Size, parameters: int, tensors: int) -> None:
    with torch.device("meta"):
        assert count(Transformer(size)) == (parameters, tensors)


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model, tokens = Transformer(SMALL), torch.zeros(1, 8, dtype=torch.int64)
    other = tokens.clone()
    other[0, 5:] = 1
    with torch.no_grad():
        before, after = model(tokens), model(other)

    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


def test_layers_that_add_to_a_shortcut_begin_smaller() -> None:
    torch.manual_seed(0)
    model = Transformer(SMALL)
    first = {name: p.detach() for name, p in model.named_parameters() if name.startswith("blocks.0.")}
    deviations = {name[9:-7]: float(p.std()) for name, p in first.items() if p.dim() == 2}

    assert deviations == pytest.approx(
        {**dict.fromkeys(["query", "key", "value", "up"], 0.02), **dict.fromkeys(["out", "down"], 0.02 / 8**0.5)},
        rel=0.02,
    )
    assert {name: float(p.mean()) for name, p in first.items() if p.dim() == 1} == {
        **{f"blocks.0.{layer}.bias": 0 for layer in ("norm1", "norm2", "up", "down")},
        **{f"blocks.0.{layer}.weight": 1 for layer in ("norm1", "norm2")},
    }
