"""The tables of kinds hold together: every row says all that the code asks of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from pytest_distbench.judging.training_rule import judge_family
from pytest_distbench.records.kinds import METRIC_KINDS, MetricKind, metric_kind
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.reasons import REASONS, reason
from pytest_distbench.records.run import Finding

assert judge_family  # imported, so that a rule without a judge would be noticed at once


@pytest.mark.parametrize("name", METRIC_KINDS)
def test_kinds_that_are_judged_by_how_much_worse_they_are_have_a_direction(name: str) -> None:
    kind = METRIC_KINDS[name]

    assert (kind.sign != 0) == (kind.is_noisy or kind.is_steady or kind.rule == "memory")
    assert kind.launch_value([3.0]) == 3.0
    assert kind.limit_text(0.1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lower", "+10%"),
        ("higher", "-9%"),
        ("exact", "exact"),
        ("curve", "10.0 %"),
        ("same", "±10.0%"),
        ("steps", "+10.0%"),
        ("floor", "-10.0%"),
    ],
)
def test_a_limit_is_printed_as_the_metric_moves(name: str, text: str) -> None:
    assert METRIC_KINDS[name].limit_text(0.1) == text


def test_marks_are_one_character_and_only_a_failure_has_the_exclamation_mark() -> None:
    assert {len(row.mark) for row in REASONS.values()} == {1}
    assert {row.severity for row in REASONS.values() if row.mark == "!"} == {"failure"}
    assert {code for code, row in REASONS.items() if row.fails and row.mark != "!"} == set()
    assert {row.verdict for row in REASONS.values() if row.severity == "doubt"} == {"inconclusive"}

    with pytest.raises(ValueError, match=r"unknown kind of metrics 'lwoer'; wanted one of .*lower, exact"):
        metric_kind("lwoer")
    with pytest.raises(ValueError, match="unknown reason 'worse'; wanted one of bound, beyond-threshold"):
        reason("worse")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Sample, b'{"name": "m", "unit": "", "better": "lwoer", "value": 1.0}'),
        (Finding, b'{"metric": "m", "code": "equal", "unit": "", "better": "lwoer"}'),
        (Finding, b'{"metric": "m", "code": "worse", "unit": "", "better": "lower"}'),
    ],
)
def test_a_record_in_a_file_with_an_unknown_kind_is_refused(kind: type, text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"unknown (kind of metrics|reason)"):
        msgspec.json.decode(text, type=kind)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rule": "noisy"}, "wanted sign=1 where a larger number is worse"),
        ({"rule": "my_rule"}, "rule 'my_rule' and no sign"),
    ],
)
def test_a_row_that_would_make_a_metric_that_never_fails_is_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        MetricKind(**({"summary": "s", "reduce": "max"} | row))


def test_a_threshold_that_no_slowdown_reaches_is_a_few_characters() -> None:
    """Two launches that differ by chance allow anything."""
    assert METRIC_KINDS["lower"].limit_text(1e60) == "> +1000%"
