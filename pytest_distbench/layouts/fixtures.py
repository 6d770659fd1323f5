"""Equivalent, the fixture ``equivalent``: one training, under a layout and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import pytest

from pytest_distbench.errors import show
from pytest_distbench.layouts import why_no_library
from pytest_distbench.plugin.arguments import Called, ShapeKeywords
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run

PRECISIONS = ("float32", "bfloat16", "float16")
_FEWEST_STEPS, _MOST_STEPS = 2, 1000
_MOST_SIMULATED = 1024
_COMPARE = "pytest_distbench.layouts.compare:compare"
_MODELS = Path(__file__).with_name("models.py")
_COMPARE_MADE = "pytest_distbench.layouts.models:compare_made"


class Equivalent:
    """The ``equivalent`` fixture."""

    def __init__(self, distbench: Distbench) -> None:
        self._distbench = distbench

    def __call__(
        self,
        training: str,
        layout: str,
        *,
        steps: int = 4,
        precision: str = "float32",
        simulated_ranks: int | None = None,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """Train under a layout, and fail the test if that differs from one rank by more than roundings do.

        The float64 reference is the training on one rank. Controls are the training on one rank in ``precision``,
        with the samples of each batch in another order: the bound follows from their distances. Judged are
        ``loss_deviation``, ``gradient_deviation`` and ``state_deviation`` (parameters and buffers after each update),
        ``random_conflicts``, against a baseline ``loss_curve`` and ``step_time``, and the communication fingerprint.

        Args:
            training: a ``TrainSpec`` in a file: ``"gpt.py::gpt"``.
            layout: a row of ``LAYOUTS`` in ``layouts/layouts.py``, or one of the training's own.
            steps: number of steps to compare.
            precision: ``float32``, or ``bfloat16`` and ``float16`` for autocast, the latter with a scaled loss.
            simulated_ranks: ranks of the layout in one process, with true values but neither times nor memory. For
                ``tensor_parallel`` and layouts of the training's own.

        Raises:
            BeyondBound: the layout differs from one rank. The message names the first step and parameter.
            LaunchFailed: nothing is trained, or the layout does not send what it should.
            Misuse: an argument cannot be used.
        """
        self._distbench.skip_without_timings("equivalent compares values")
        given = self._distbench.arguments("equivalent")
        given.keywords(options, self.__call__, ShapeKeywords)
        if not isinstance(training, str) or "::" not in training:
            given.refuse(f"training={show(training)}: wanted a TrainSpec in a file: 'gpt.py::gpt'")
        params = {
            "layout": given.text("layout", layout),
            "steps": given.whole("steps", steps, least=_FEWEST_STEPS, most=_MOST_STEPS),
            "precision": given.choice("precision", precision, PRECISIONS),
        }
        if simulated_ranks is not None:
            params["simulated_ranks"] = given.whole("simulated_ranks", simulated_ranks, least=2, most=_MOST_SIMULATED)
            if options.setdefault("world_size", 1) != 1:
                given.refuse("simulated_ranks= are one process: leave world_size= out")
        wanted = Called(body=training, called_by=_COMPARE, params=params, argument="training", **options)
        return self._distbench.path.run(given, wanted)

    def model(self, model: str, layout: str, *, steps: int = 4, seed: int = 0) -> Run:
        """Compare a model without a TrainSpec with one rank, as :meth:`__call__` does, with random weights and data.

        Args:
            model: ``transformers:NAME``, or ``file.py::make``: a function that returns a module and a batch, such that
                ``module(**batch)`` or ``module(*batch)`` is a loss, or has one as ``loss``: a mean over samples, or
                over the ``labels`` of a batch.
            layout: name of a layout, as in :meth:`__call__`.
            steps: number of steps to compare.
            seed: seed of the weights.
        """
        self._distbench.skip_without_timings("equivalent compares values")
        given = self._distbench.arguments("equivalent.model")
        is_of_library = "::" not in model
        if is_of_library and (why := why_no_library(model.partition(":")[0])):
            pytest.skip(f"not run: {why}")
        params = {"layout": layout, "steps": given.whole("steps", steps, least=_FEWEST_STEPS, most=_MOST_STEPS)}
        params |= {"model": model if is_of_library else model.rpartition("::")[2], "precision": PRECISIONS[0]}
        body, called_by = (f"{_MODELS}::compare_model", "") if is_of_library else (model, _COMPARE_MADE)
        wanted = Called(body=body, called_by=called_by, params=params, argument="model", seeds=(seed,))
        return self._distbench.path.run(given, wanted)
