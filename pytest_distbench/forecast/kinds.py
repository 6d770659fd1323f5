"""MODELLED, the kind of a number that a model gives. Ranks import it; the rule that judges it is in ``rule.py``."""

from __future__ import annotations

from pytest_distbench.records.kinds import MetricKind
from pytest_distbench.records.reasons import Reason, because

MODELLED = MetricKind(
    summary="a cost by a model: may not rise, whatever the model's terms are; a series: the least it may be, the most, "
    "and what it is",
    reduce="rank0",
    rule="modelled",
    sign=1,
    shape="series",
    keeps_series=True,
    is_steady=True,
    limit_text=lambda limit: f"+{limit:.1%}",
    tolerance=0.02,
)

MODEL_UNSURE: Reason = because(
    "inconclusive",
    means="The forecast rose, but would not have if the terms of the cluster were off by as much as they may be.",
    next_step="measure the terms on the cluster (distbench cluster), and lower within= in its file",
    printed=r"if terms are off",
)
