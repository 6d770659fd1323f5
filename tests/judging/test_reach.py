"""For which metrics nothing that could have been measured would have turned red."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import result, verdict

from pytest_distbench.judging.reach import out_of_reach
from pytest_distbench.records.bound import Bound
from pytest_distbench.records.environment import Environment

SAME = {"torch": "2.13.0"}


@pytest.mark.parametrize(
    ("changes", "software", "why"),
    [
        ({"detectable": 2.1}, SAME, "no slowdown below +210.0 % would have been red"),
        ({"detectable": 0.4}, SAME, ""),
        ({"detectable": None}, SAME, ""),
        ({"detectable": 2.1, "bounds": [Bound(side="most", value=1.0, where="here")]}, SAME, ""),
        ({"better": "exact"}, SAME, ""),
        (
            {"better": "exact"},
            {"torch": "2.14.0"},
            "an exact number is not comparable under other software (torch 2.13.0 -> 2.14.0)",
        ),
        (
            {"better": "floor"},
            {"torch": "2.14.0"},
            "one seed tells nothing under other software (torch 2.13.0 -> 2.14.0)",
        ),
        ({"better": "floor", "facts": {"seeds": 5}}, {"torch": "2.14.0"}, ""),
        ({"better": "curve"}, {"torch": "2.14.0"}, ""),
        ({"better": "exact", "metric": "fingerprint"}, {"torch": "2.14.0"}, ""),
    ],
)
def test_a_rule_that_could_not_have_failed_is_found(
    changes: dict[str, Any], software: dict[str, str], why: str
) -> None:
    environment = Environment(platform="cpu-x", device="X", cores=2, software=software)
    found = out_of_reach(result(verdict("unchanged", **changes), environment=environment))

    assert [text for _, text in found] == ([why] if why else [])


def test_what_is_red_was_not_out_of_reach() -> None:
    assert out_of_reach(result(verdict("regressed", detectable=9.0))) == []
