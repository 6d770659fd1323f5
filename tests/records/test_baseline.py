"""What the store keeps: what a file may say, and what not."""

from __future__ import annotations

import msgspec
import pytest

from pytest_distbench.records.case import BaselineMetric


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ('"minimum": [1], "p95": [1, 2]', r"one number per launch, found \(2, 1, 2\)"),
        ('"minimum": [1, 2.5], "p95": [1, 3]', r"a launch of 2 cannot have minimum 2\.5 and p95 3\.0"),
    ],
)
def test_ends_that_do_not_belong_to_the_launches_are_refused_where_the_file_is_read(ends: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.json.decode(f'{{"better": "lower", "unit": "s", "launches": [1, 2], {ends}}}', type=BaselineMetric)
