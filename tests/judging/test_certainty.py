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


def test_a_fingerprint_that_more_launches_were_to_confirm_stays_changed_beside_what_is_red() -> None:
    """It may be why that is red."""
    seen = verdict("changed", metric="fingerprint", better="exact")

    assert close(Judgement(seen, is_open=True), "sum regressed") == Judgement(seen, is_open=False)
