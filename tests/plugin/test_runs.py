"""What a run found, as a test sees it."""

from __future__ import annotations

import pytest
from support.results import verdict
from support.stores import result

from pytest_distbench.plugin.runs import Run
from pytest_distbench.run.samples import Samples


class NoSamples(Samples):
    """None are made."""

    def add(self, *, only: object = ()) -> None:
        """Adds none."""


RUN = Run(NoSamples(), lambda: result(1.0, None, 3.0, verdicts=[verdict("regressed", metric="step")]))


def test_a_metric_has_a_value_for_each_launch() -> None:
    assert RUN.values("step") == [1.0, None, 3.0]
    assert len(RUN.launches) == 3


def test_a_metric_that_was_not_measured_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="'gone' was not measured; there are step"):
        RUN.values("gone")


def test_verdicts_are_found_by_their_metric() -> None:
    assert RUN.verdicts["step"].kind == "regressed"
