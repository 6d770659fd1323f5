"""When the next launch of a case may begin."""

from __future__ import annotations

import pytest

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Summary
from pytest_distbench.run.samples import Pacer


def launch(*, p95: float | None, better: str = "lower") -> LaunchRecord:
    summary = None
    if p95 is not None:
        summary = Summary(n=9, minimum=1.0, p25=1.0, median=1.0, p95=p95, p99=p95, mean=1.0, stdev=0.1)
    measurement = Measurement(name="m", unit="s", better=better, value=1.0, summary=summary)
    return LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[measurement])


@pytest.mark.parametrize(
    ("before", "waits"),
    [
        (None, False),
        (launch(p95=1.05), False),
        (launch(p95=1.5), True),
        (launch(p95=None), True),
        (launch(p95=None, better="exact"), False),
    ],
)
def test_only_a_noisy_launch_is_not_followed_at_once(before: LaunchRecord | None, *, waits: bool) -> None:
    waited: list[float] = []
    pacer = Pacer(1.5, clock=lambda: 100.0, sleep=waited.append)
    pacer.wait_for_next(None)
    pacer.wait_for_next(before)

    assert waited == ([1.5] if waits else [])


def test_a_launch_that_took_longer_than_the_spacing_is_followed_at_once() -> None:
    waited: list[float] = []
    now = iter([0.0, 0.0, 2.0, 2.0])
    pacer = Pacer(1.5, clock=lambda: next(now), sleep=waited.append)
    pacer.wait_for_next(None)
    pacer.wait_for_next(launch(p95=2.0))

    assert waited == []
