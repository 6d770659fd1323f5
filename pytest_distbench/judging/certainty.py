"""Certainty: what is red at one look, and needs no further launch. Pure, no I/O.

A changed fingerprint, a curve that departs, an exact number, a bound of one, and what is measured no more do not
scatter between launches of the same code: more of them tell nothing new. What is still open then, clocks, is left
unjudged.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.judging.draft import Judgement
from pytest_distbench.records.record import replace


def certain_failure(judgements: Sequence[Judgement]) -> str:
    """The metric that fails the case for certain, and how; empty: none does."""
    failed = (j.verdict for j in judgements if j.verdict.is_failure and not j.is_open)
    first = next((v for v in failed if v.kind in ("lost", "changed") or not v.is_noisy), None)
    return "" if first is None else f"{first.metric} {_WORDS.get(first.kind, first.kind)}"


NOT_JUDGED = "not judged: no more launches were made, as the case is red for certain"


def close(judgement: Judgement, reason: str) -> Judgement:
    """An open judgement as it stays: not judged, as the case is red without it. What is exact stays as it was seen.

    Args:
        judgement: that more launches could have settled.
        reason: what is red for certain.
    """
    if not judgement.verdict.is_noisy:
        return judgement._replace(is_open=False)
    told = f"{NOT_JUDGED} ({reason})"
    return Judgement(replace(judgement.verdict, kind="inconclusive", reason=told), is_open=False)


_WORDS = {"beyond": "is beyond a bound", "lost": "is measured no more", "changed": "changed"}
