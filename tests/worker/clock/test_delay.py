"""What a clock spans takes longer by a share of itself, on a clock that is made up."""

from __future__ import annotations

import time

import pytest
from support.virtual_cuda import VirtualCuda

from pytest_distbench.worker.clock.host import Delay


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> VirtualCuda:
    return VirtualCuda(monkeypatch)


def delay(share: float) -> Delay:
    return Delay(share, time.perf_counter)


@pytest.mark.parametrize("own_s", [1e-4, 1e-3, 1.0])
def test_what_is_spanned_is_longer_by_a_share_of_itself(host: VirtualCuda, own_s: float) -> None:
    planted, began = delay(0.2), host.now
    since = planted.mark()
    host.compute(own_s)
    planted.wait(since)

    assert host.now - began == pytest.approx(1.2 * own_s, abs=1e-6)
    assert planted.waited_s == pytest.approx(0.2 * own_s, abs=1e-6)


def test_what_is_apart_or_was_delayed_in_part_is_not_delayed_twice(host: VirtualCuda) -> None:
    """A step of 2 s, and an evaluation of 1 s in it that is no part of the step."""
    planted, began = delay(0.5), host.now
    step = planted.mark()
    evaluation = planted.mark()
    host.compute(1.0)
    planted.wait(evaluation, is_apart=True)
    host.compute(2.0)
    planted.wait(step, apart_s=1.5)

    assert host.now - began == pytest.approx(4.5, abs=1e-5)

    # An iteration of 3 s, 1 s of which is a phase
    planted, began = delay(0.5), host.now
    iteration = planted.mark()
    phase = planted.mark()
    host.compute(1.0)
    planted.wait(phase)
    host.compute(2.0)
    planted.wait(iteration)

    assert host.now - began == pytest.approx(4.5, abs=1e-5)
