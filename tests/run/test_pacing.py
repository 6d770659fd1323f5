"""When the next launch of a case may begin."""

from __future__ import annotations

import pytest

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.run.sources import Pacer


def launch(*, p95: float | None, better: str = "lower") -> LaunchRecord:
    summary = None
    if p95 is not None:
        summary = Spread(n=9, minimum=1.0, p25=1.0, median=1.0, p95=p95, p99=p95, mean=1.0, stdev=0.1)
    measurement = Sample(name="m", unit="s", better=better, value=1.0, spread=summary)
    return LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[measurement])


@pytest.mark.parametrize(
    ("before", "took_s", "waits"),
    [
        (None, 0.0, False),
        (launch(p95=1.05), 0.0, False),
        (launch(p95=1.5), 0.0, True),
        (launch(p95=1.5), 2.0, False),
        (launch(p95=None), 0.0, True),
        (launch(p95=None, better="exact"), 0.0, False),
    ],
)
def test_only_a_noisy_launch_that_was_short_is_not_followed_at_once(
    before: LaunchRecord | None, took_s: float, *, waits: bool
) -> None:
    waited: list[float] = []
    now = iter([0.0, 0.0])
    pacer = Pacer(1.5, now=lambda: next(now, took_s), sleep=waited.append)
    pacer.wait_for_next(None)
    pacer.wait_for_next(before)

    assert waited == ([1.5] if waits else [])
