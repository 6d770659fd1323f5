"""What was found of a slowdown."""

from __future__ import annotations

from support.results import verdict

from pytest_distbench.records.control import Control


def test_found_is_what_would_have_failed_its_test() -> None:
    kinds = ["regressed", "beyond", "inconclusive", "unseen", "unchanged", "missing"]
    control = Control(verdicts=[verdict(kind, metric=kind) for kind in kinds])

    assert [v.metric for v in control.found] == ["regressed", "beyond"]
