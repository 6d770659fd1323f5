"""What a run found, as a test sees it."""

from __future__ import annotations

import pytest
from support.results import verdict
from support.stores import result

from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.run.samples import Samples


class NoSamples(Samples):
    """None are made."""

    def add(self, *, only: object = ()) -> None:
        """Adds none."""


RUN = Run(NoSamples(), lambda: result(1.0, None, 3.0, verdicts=[verdict("beyond-threshold", metric="step")]))


def test_a_run_has_its_values_by_launch_and_its_verdicts_by_metric() -> None:
    assert RUN.values("step") == [1.0, None, 3.0]
    assert len(RUN.launches) == 3

    with pytest.raises(KeyError, match="'gone' was not measured; there are step"):
        RUN.values("gone")

    assert RUN.verdicts["step"].kind == "regressed"
