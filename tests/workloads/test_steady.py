"""Warm-up ends when calls take equally long, and ends."""

from __future__ import annotations

import pytest
from support.ranks import make_rank

from pytest_distbench.worker.clock.host import HostClock
from pytest_distbench.workloads import steady
from pytest_distbench.workloads.steady import is_steady, warm_up


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], False),
        ([1.0, 1.0], False),
        ([1.0, 1.0, 1.0], True),
        ([2.0, 1.5, 1.005, 1.0, 0.995], True),
        ([2.0, 1.5, 1.2, 1.1, 1.0], False),
        ([1.0, 1.0, 1.05], False),
    ],
)
def test_the_last_times_have_to_agree(times: list[float], *, expected: bool) -> None:
    assert is_steady(times) is expected


def test_a_device_that_speeds_up_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(HostClock, "perf_counter", lambda: clock[0])
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock[0] += 1e-3 * (2.0 if calls[0] < 120 else 1.0)

    assert warm_up(make_rank(), call) == 6  # two slow ones, one of both, and three that agree


def test_one_that_never_settles_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, step = [0.0], [1e-3]
    monkeypatch.setattr(HostClock, "perf_counter", lambda: clock[0])

    def call() -> None:
        step[0] *= 1.01
        clock[0] += step[0]

    warm_up(make_rank(), call)
    assert steady.MOST_S < clock[0] < steady.MOST_S + 60 * steady.WINDOW_S
