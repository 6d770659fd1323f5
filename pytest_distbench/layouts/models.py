"""What ranks compare of a model that comes without a TrainSpec: one of transformers, or what a function makes."""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_distbench.errors import BodyError, show
from pytest_distbench.layouts import why_no_library
from pytest_distbench.layouts.compare import compare
from pytest_distbench.layouts.layouts import LAYOUTS
from pytest_distbench.layouts.strangers import CANNOT_TRAIN, skipping
from pytest_distbench.layouts.training import Batch, TrainSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_distbench.layouts.training import Pass
    from pytest_distbench.worker.context import RankContext

_IGNORED = -100  # a target that cross-entropy leaves out


def compare_model(rank: RankContext) -> None:
    """Compare a model of a library with one rank: ``rank.params["model"]`` is ``transformers:NAME``."""
    library, _, name = rank.params["model"].partition(":")
    module = importlib.import_module(f"pytest_distbench.layouts.from_{library}")
    _compare(rank, module.training(rank, name), library)


def compare_made(rank: RankContext, make: object) -> None:
    """Compare what a function makes, a module and a batch, with one rank; or a TrainSpec."""
    function = make.model if isinstance(make, TrainSpec) else make
    file = getattr(getattr(function, "__code__", None), "co_filename", "")  # each of two revisions has its own
    if not isinstance(make, TrainSpec):
        if not callable(make):
            raise BodyError(f"wanted a function that returns a module and a batch, found {show(make)}")
        make = _training(make)
    _compare(rank, make, file)


def _compare(rank: RankContext, training: TrainSpec, source: str) -> None:
    layout = rank.params["layout"]
    known = LAYOUTS.get(layout)
    if layout not in training.layouts and known is not None:
        for needed in known.needs:
            if getattr(training, needed) is None:
                raise unittest.SkipTest(f"{layout} needs {_WITHOUT[needed]}")
    _expect_trainable(rank, training)
    key = json.dumps([source, *(rank.params[name] for name in ("model", "steps", "precision")), rank.seed])
    compare(rank, training, is_timed=False, controls_key=key if source else "")


_WITHOUT = {
    "blocks": "blocks, and it has no list of modules",
    "tensor_parallel": "a plan, and it has none",
    "stages": "a plan of its stages, and it has none",
}


def _expect_trainable(rank: RankContext, training: TrainSpec) -> None:
    """Skip a model that no rank can train alone: for its operators, its kernels, or what it takes."""
    torch.manual_seed(rank.seed)
    with skipping(CANNOT_TRAIN):
        inputs, targets = training.batch(0)
        training.loss(training.model().to(rank.device)(inputs.to(rank.device)), targets.to(rank.device)).backward()


def _training(make: Callable[[], object]) -> TrainSpec:
    """The training of what a function makes; its batch is that of each step.

    The inputs of the TrainSpec are numbers of samples, of which the module then gets the rows.
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
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    targets = labels if isinstance(labels, torch.Tensor) and labels.dim() > 1 else torch.arange(samples)

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
            loss: torch.Tensor = found if isinstance(found, torch.Tensor) else found.loss
            return loss

        own.forward = forward  # wrappers call it, and modules keep their names
        return own

    def batch_of(_step: int) -> Batch:
        return torch.arange(samples), targets

    def terms(some: torch.Tensor) -> int:
        return int((some[:, 1:] != _IGNORED).sum())  # the first label of a row is no target of the model's shifted loss

    lists = [found for found in module.modules() if isinstance(found, nn.ModuleList)]
    return TrainSpec(
        model=model,
        batch=batch_of,
        loss=lambda loss, _targets: loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        max_norm=1.0,
        blocks=_blocks if lists else None,
        terms=terms if targets.dim() > 1 else None,
        layouts=_layouts_of(module),
    )


def _layouts_of(module: Any) -> Mapping[str, Callable[[Pass], object]]:
    """Those that a model of a library has a plan of."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(module, transformers.PreTrainedModel) or why_no_library("transformers"):
        return {}
    from pytest_distbench.layouts.from_transformers import layouts_of

    return layouts_of(module.config)


def _blocks(module: nn.Module) -> nn.ModuleList:
    """The longest list of modules."""
    return max((found for found in module.modules() if isinstance(found, nn.ModuleList)), key=len)
