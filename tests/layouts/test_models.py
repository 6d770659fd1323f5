"""The training that is made of a module and a batch."""

from __future__ import annotations

import contextlib
import io
import types
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.ranks import make_rank
from torch import nn
from torch.nn import functional

from pytest_distbench.errors import BodyError
from pytest_distbench.layouts import models
from pytest_distbench.worker.context import RankContext


class Classifier(nn.Module):
    """Gives its loss, a mean over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.parts = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor, targets: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        for block in [*self.blocks, *self.parts]:
            x = torch.relu(block(x))
        return scale * functional.cross_entropy(x, targets)


class NextToken(nn.Module):
    """Gives something with a loss: the mean over labels that are not -100. A subclass says which are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 8)
        nn.init.zeros_(self.table.weight)  # as heads may be: all samples have one loss

    def scores(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(input_ids), labels

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        scores, wanted = self.scores(input_ids, labels)
        return type("Outputs", (), {"loss": functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())})


class Shifted(NextToken):
    def scores(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(input_ids)[:, :-1], labels[:, 1:]


class BySample(NextToken):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        pairs = zip(input_ids, labels, strict=True)
        return torch.stack([functional.cross_entropy(self.table(row), wanted) for row, wanted in pairs]).mean()


def asked_for(layout: str) -> RankContext:
    rank = make_rank()
    rank.params = {"layout": layout, "model": "make", "steps": 4, "precision": "float32"}
    return rank


def rows() -> dict[str, Any]:
    return {"x": torch.randn(6, 4), "targets": torch.randint(4, (6,)), "scale": 2.0}


@pytest.mark.parametrize("make_batch", [rows, lambda: tuple(rows().values())])
def test_a_part_of_the_samples_has_the_loss_of_its_rows(make_batch: Callable[[], Any]) -> None:
    batch = make_batch()
    training = models._training(lambda: (Classifier(), batch))
    x, targets, scale = batch.values() if isinstance(batch, dict) else batch

    model = training.model()

    assert torch.equal(training.batch(0)[0], torch.arange(6))
    assert torch.equal(model(torch.tensor([1, 4])), Classifier.forward(model, x[[1, 4]], targets[[1, 4]], scale))


def test_its_blocks_are_the_longest_list_of_modules() -> None:
    training = models._training(lambda: (Classifier(), rows()))
    model = training.model()

    assert training.blocks is not None
    assert training.blocks(model) is model.blocks
    assert models._training(lambda: (nn.Linear(4, 4), {"input": torch.ones(2, 4)})).blocks is None


@pytest.mark.parametrize(("kind", "terms"), [(NextToken, 7), (Shifted, 5), (BySample, 3)])
def test_a_part_is_weighed_as_the_loss_does_that(kind: type[NextToken], terms: int) -> None:
    labels = torch.tensor([[1, 2, -100], [1, 2, 3], [-100, 4, 5]])
    training = models._training(lambda: (kind(), {"input_ids": torch.arange(9).view(3, 3) % 8, "labels": labels}))
    _, targets = training.batch(0)
    model = training.model()
    nn.init.normal_(model.table.weight)
    parts = [model(torch.tensor([i])) * training.terms(targets[[i]]) for i in range(3)]

    assert training.terms(targets) == terms
    assert torch.allclose(sum(parts) / terms, model(torch.arange(3)))


LABELS = torch.tensor([[1, 2], [-100, 3]])


@pytest.mark.parametrize(
    ("batch", "is_found"),
    [
        ({"x": LABELS.abs(), "labels": LABELS.abs()}, True),
        ({"x": LABELS.abs(), "targets": LABELS}, True),
        ((LABELS.abs(), LABELS[0], LABELS[1]), True),
        ({"x": LABELS.abs(), "targets": LABELS.abs()}, False),
        ({"x": LABELS.float()}, False),
        ({"x": LABELS, "targets": LABELS}, False),
    ],
)
def test_labels_are_named_so_or_are_what_has_ignored_numbers(batch: Any, *, is_found: bool) -> None:
    [*_, last] = batch.values() if isinstance(batch, dict) else batch

    assert models._labels(batch) is (last if is_found else None)


def test_of_samples_that_are_ignored_a_part_has_no_weight() -> None:
    batch = {"x": torch.randn(3, 4), "targets": torch.tensor([1, -100, 2])}
    training = models._training(lambda: (Classifier(), batch))

    assert [training.terms(training.batch(0)[1][[i]]) for i in range(3)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (7, "wanted a module and a batch"),
        ((Classifier(), []), "wanted a module and a batch"),
        ((Classifier(), {"x": torch.ones(4, 4), "targets": torch.ones(3)}), r"as many samples each, found \[3, 4\]"),
        ((Classifier(), {"scale": 2.0}), "found no tensor"),
    ],
)
def test_what_is_no_module_with_a_batch_is_refused(made: object, refusal: str) -> None:
    with pytest.raises(BodyError, match=refusal):
        models._training(lambda: made)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [("tensor_parallel", "needs a plan, and it has none"), ("pipeline", "needs a plan of its stages, and it has none")],
)
def test_a_layout_that_the_model_has_no_plan_of_is_skipped(layout: str, reason: str) -> None:
    rank = asked_for(layout)

    with pytest.raises(unittest.SkipTest, match=reason):
        models.compare_made(rank, lambda: (Classifier(), rows()))


def test_a_model_of_a_library_that_one_rank_cannot_train_is_skipped_and_one_of_the_user_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = asked_for("ddp")

    def make() -> tuple[nn.Module, dict[str, Any]]:
        return Classifier(), rows() | {"x": torch.ones(6, 3)}

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        models.compare_made(rank, make)

    library = types.SimpleNamespace(training=lambda rank, name: models._training(make))
    monkeypatch.setattr(models.importlib, "import_module", lambda name: library)
    with pytest.raises(unittest.SkipTest, match="one rank alone cannot train it: RuntimeError: mat1 and mat2 "):
        models.compare_model(rank)


def test_a_model_of_a_library_that_draws_random_numbers_in_training_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noisy(Classifier):
        def forward(self, x: torch.Tensor, targets: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return super().forward(x + torch.rand_like(x), targets, scale)

    library = types.SimpleNamespace(training=lambda rank, name: models._training(lambda: (Noisy(), rows())))
    monkeypatch.setattr(models.importlib, "import_module", lambda name: library)

    with pytest.raises(unittest.SkipTest, match="it draws random numbers in training"):
        models.compare_model(asked_for("ddp"))


class Decoder(nn.Module):
    """Layers as in a model of transformers, which scales what goes into them, or returns more from them."""

    def __init__(self, scale: float, returns: int) -> None:
        super().__init__()
        self.embed, self.scale, self.returns = nn.Embedding(128, 4), scale, returns
        self.layers = nn.ModuleList(self.Layer(returns) for _ in range(2))

    class Layer(nn.Linear):
        def __init__(self, returns: int) -> None:
            super().__init__(4, 4)
            self.returns = returns

        def forward(self, input: torch.Tensor) -> Any:  # noqa: A002 torch's name of it
            return super().forward(input) if self.returns == 1 else (super().forward(input), None)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        found = inputs_embeds * self.scale
        for layer in self.layers:
            found = layer(found) if self.returns == 1 else layer(found)[0]
        return found


@pytest.mark.parametrize(
    ("scale", "returns", "reason"),
    [(1.0, 1, ""), (12.0, 1, "its forward pass changes inputs_embeds"), (1.0, 2, "its layers pass more to each other")],
)
def test_a_pipeline_is_not_run_where_hidden_states_are_not_all_that_a_stage_needs(
    scale: float, returns: int, reason: str
) -> None:
    check = pytest.importorskip("pytest_distbench.layouts.from_transformers", exc_type=ImportError)._check_layers
    model = Decoder(scale, returns)

    with pytest.raises(unittest.SkipTest, match=reason) if reason else contextlib.nullcontext():
        check(model)
    assert reason or not model.layers[0]._forward_hooks


def test_where_one_rank_skips_all_do() -> None:
    rank = make_rank()
    packed = io.BytesIO()
    torch.save("it is too large", packed)
    rank.gather = lambda own: [own, packed.getvalue()]  # type: ignore[method-assign]

    with pytest.raises(unittest.SkipTest, match="it is too large"):
        models.together(rank, lambda: 1)


@pytest.mark.parametrize("loss", [None, {"loss": 1.0}, torch.ones(3)])
def test_what_is_no_loss_is_refused(loss: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classifier, "forward", lambda *_, **__: loss)

    with pytest.raises(BodyError, match="wanted a loss, a tensor of one number"):
        models.compare_made(asked_for("ddp"), lambda: (Classifier(), rows()))
