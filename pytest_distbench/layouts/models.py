"""Comparison of models without a TrainSpec: those of transformers, and those that a function makes."""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_distbench.errors import BodyError, show
from pytest_distbench.layouts import why_no_library
from pytest_distbench.layouts.compare import compare
from pytest_distbench.layouts.dropout import without_dropout
from pytest_distbench.layouts.layouts import LAYOUTS
from pytest_distbench.layouts.modules import exchanged
from pytest_distbench.layouts.strangers import CANNOT_TRAIN, blocks_of, skipping
from pytest_distbench.layouts.training import Batch, TrainSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_distbench.layouts.training import Pass
    from pytest_distbench.worker.context import RankContext

_IGNORED = -100  # a target that cross-entropy leaves out


def compare_model(rank: RankContext) -> None:
    """Compare a library's model under a layout with one rank: ``rank.params["model"]`` is ``transformers:NAME``."""
    library, _, name = rank.params["model"].partition(":")
    module = importlib.import_module(f"pytest_distbench.layouts.from_{library}")
    try:
        training = together(rank, lambda: module.training(rank, name))
        _compare(rank, training, library, is_library=True)
    except unittest.SkipTest as reason:
        raise unittest.SkipTest(f"{name}: {reason}") from reason


def compare_made(rank: RankContext, make: object) -> None:
    """Compare a TrainSpec, or the module and batch that a function makes, under a layout with one rank."""
    function = make.model if isinstance(make, TrainSpec) else make
    file = getattr(getattr(function, "__code__", None), "co_filename", "")  # each of two revisions has its own
    if not isinstance(make, TrainSpec):
        if not callable(make):
            raise BodyError(f"wanted a function that returns a module and a batch, found {show(make)}")
        make = _training(make)
    _compare(rank, make, file)


def _compare(rank: RankContext, training: TrainSpec, source: str, *, is_library: bool = False) -> None:
    """Compare a training after each rank alone has computed a step of it, which skips a library's that fails."""
    layout = rank.params["layout"]
    known = LAYOUTS.get(layout)
    if layout not in training.layouts and known is not None:
        for needed in known.needs:
            if getattr(training, needed) is None:
                raise unittest.SkipTest(f"{layout} needs {_WITHOUT[needed]}")
    torch.manual_seed(rank.seed)

    def step() -> None:
        with skipping(CANNOT_TRAIN) if is_library else nullcontext(), without_dropout():
            inputs, targets = (part.to(rank.device) for part in training.batch(0))
            model = training.model().to(rank.device)
            before = torch.get_rng_state()
            training.loss(model(inputs), targets).backward()
            if is_library and not torch.equal(before, torch.get_rng_state()):
                raise unittest.SkipTest("it draws random numbers in training, so no two passes are equal")

    together(rank, step)
    key = json.dumps([source, *(rank.params[name] for name in ("model", "steps", "precision")), rank.seed])
    compare(rank, training, is_timed=False, shared_as=key if source else "")


def together(rank: RankContext, compute: Callable[[], Any]) -> Any:
    """Call ``compute`` on each rank, and skip on all ranks if it skips on one. A collective call."""
    found, reason = None, ""
    try:
        found = compute()
    except unittest.SkipTest as error:
        reason = str(error)
    for each in exchanged(reason, rank.gather):
        if each:
            raise unittest.SkipTest(each)
    return found


_WITHOUT = {
    "blocks": "blocks to compute again, and it has no ModuleList",
    "tensor_parallel": "a plan, and it has none",
    "stages": "a plan of its stages, and it has none",
}


def _training(make: Callable[[], object]) -> TrainSpec:
    """Make a TrainSpec of a function that returns a module and a batch; each step has that batch.

    Inputs of the TrainSpec are indices of samples; the module gets those rows of the batch.
    """

    def made() -> tuple[nn.Module, Mapping[str, Any] | tuple[Any, ...]]:
        found = make()
        if isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[0], nn.Module):
            module, batch = found
            if isinstance(batch, Mapping) or (isinstance(batch, tuple | list) and batch):
                return module, batch if isinstance(batch, Mapping) else tuple(batch)
        raise BodyError(
            f"wanted a module and a batch, a mapping or a sequence for module(**batch) or module(*batch); "
            f"found {show(found)}"
        )

    torch.manual_seed(0)
    module, batch = made()
    values = list(batch.values() if isinstance(batch, Mapping) else batch)
    counts = {len(value) for value in values if isinstance(value, torch.Tensor) and value.dim()}
    if len(counts) != 1:
        raise BodyError(f"wanted tensors of as many samples each, found {sorted(counts) or 'no tensor'} samples")
    [samples] = counts
    labels = _labels(batch)
    targets = torch.arange(samples) if labels is None else labels

    def model() -> nn.Module:
        own, _ = made()
        plain = own.forward

        def forward(numbers: torch.Tensor) -> torch.Tensor:
            dtype = next(own.parameters()).dtype

            def rows(value: Any) -> Any:
                if not isinstance(value, torch.Tensor) or not value.dim():
                    return value
                found = value.to(numbers.device)[numbers]
                return found.to(dtype) if found.is_floating_point() else found

            if isinstance(batch, Mapping):
                found = plain(**{name: rows(value) for name, value in batch.items()})
            else:
                found = plain(*map(rows, batch))
            loss = getattr(found, "loss", found)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                raise BodyError(f"wanted a loss, a tensor of one number, or what has one as .loss; found {show(found)}")
            return loss

        own.forward = forward  # wrappers call it, and modules keep their names
        return own

    def batch_of(_step: int) -> Batch:
        return torch.arange(samples), targets

    return TrainSpec(
        model=model,
        batch=batch_of,
        loss=lambda loss, _targets: loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        max_norm=1.0,
        blocks=(lambda model: blocks_of(model) or []) if blocks_of(module) else None,
        terms=None if labels is None else _terms(model, labels),
        layouts=_layouts_of(module),
        has_unused=True,
    )


def _labels(batch: Mapping[str, Any] | tuple[Any, ...]) -> torch.Tensor | None:
    """Return the labels that the loss may be a mean over, or None if only samples are left."""
    named = batch if isinstance(batch, Mapping) else dict(enumerate(batch))
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor) and value.dim()}
    ignoring = [value for value in tensors.values() if not value.is_floating_point() and (value == _IGNORED).any()]
    labels = tensors.get("labels")
    if labels is not None and (labels.dim() > 1 or any(labels is each for each in ignoring)):
        return labels
    return ignoring[0] if len(ignoring) == 1 else None


def _layouts_of(module: Any) -> Mapping[str, Callable[[Pass], object]]:
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(module, transformers.PreTrainedModel) or why_no_library("transformers"):
        return {}
    from pytest_distbench.layouts.from_transformers import layouts_of

    return layouts_of(module.config)


def _terms(make: Callable[[], nn.Module], labels: torch.Tensor) -> Callable[[torch.Tensor], int]:
    """Choose what a model's mean loss is over: labels not ignored, the same without each row's first, or samples.

    Returns the function that counts them: the single samples' losses, weighted by its counts, come closest to the loss.
    """
    counts: list[Callable[[torch.Tensor], int]] = [*(partial(_count, first=first) for first in (0, 1)), len]
    samples = torch.arange(len(labels)).split(1)
    with suppress(Exception), torch.no_grad(), without_dropout():  # why it cannot be trained is found out later
        torch.manual_seed(0)
        model = make()
        for parameter in model.parameters():  # with a head of zeros all samples have the same loss
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        whole, losses = float(model(torch.arange(len(labels)))), [float(model(sample)) for sample in samples]

        def distance(count: Callable[[torch.Tensor], int]) -> float:
            weights = [count(labels[sample]) for sample in samples]
            parts = (weight * loss for weight, loss in zip(weights, losses, strict=True) if weight)
            return abs(sum(parts) / sum(weights) - whole)

        return min(counts, key=distance)
    return counts[0]


def _count(labels: torch.Tensor, first: int) -> int:
    return int(((labels[:, first:] if labels.dim() > 1 else labels) != _IGNORED).sum())
