"""MODELLED, the kind of a number that a model gives: the same in each launch of the same code."""

from __future__ import annotations

from pytest_distbench.records.kinds import MetricKind

MODELLED = MetricKind(
    summary="a cost by a model: may not rise, whatever the machine does",
    reduce="rank0",
    rule="memory",
    sign=1,
    shape="number",
    limit_text=lambda limit: f"+{limit:.1%}",
    tolerance=0.02,
)
