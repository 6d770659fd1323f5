"""What is red at one look, and needs no further launch."""

from __future__ import annotations

import pytest
from support.results import verdict

from pytest_distbench.judging.certainty import certain_failure, close
from pytest_distbench.judging.draft import Judgement
from pytest_distbench.records.kinds import Better, VerdictName


@pytest.mark.parametrize(
    ("kind", "better", "is_open", "words"),
    [
        ("regressed", "exact", False, "m regressed"),
        ("regressed", "curve", False, "m regressed"),
        ("beyond", "exact", False, "m is beyond a bound"),
        ("changed", "exact", False, "m changed"),
        ("lost", "lower", False, "m is measured no more"),
        ("regressed", "lower", False, ""),
        ("beyond", "lower", True, ""),
        ("inconclusive", "lower", True, ""),
        ("drifted", "curve", False, ""),
    ],
)
def test_what_does_not_scatter_is_certain(kind: VerdictName, better: Better, is_open: bool, words: str) -> None:
    assert certain_failure([Judgement(verdict(kind, metric="m", better=better), is_open)]) == words


def test_what_was_open_says_that_it_was_not_judged_and_why() -> None:
    closed = close(Judgement(verdict("inconclusive", reason="more launches are needed"), is_open=True), "sum regressed")

    assert not closed.is_open
    assert (
        closed.verdict.reason
        == "not judged: no more launches were made, as the case is red for certain (sum regressed)"
    )


def test_a_red_curve_that_would_have_been_asked_for_its_seed_stays_red() -> None:
    departs = verdict("regressed", better="curve", reason="departs at step 1")

    assert close(Judgement(departs, is_open=True), "sum regressed") == Judgement(departs, is_open=False)
