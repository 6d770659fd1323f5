"""Whether a slowdown may be the card's."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_distbench.judging.case import disturbance
from pytest_distbench.judging.entry import norm_of
from pytest_distbench.records.environment import GpuReport
from pytest_distbench.records.launch import LaunchRecord

NORM = GpuReport(sm_mhz=1980.0, memory_mhz=2619.0, power_limit_w=700.0, held={"power cap": 0.3})


def card(**changes: Any) -> GpuReport:
    given = {"label": "GPU 0", "uuid": "GPU-0", "looks": 5, "sm_mhz": 1980.0, "power_limit_w": 700.0}
    return GpuReport(**(given | changes))


def launch(*cards: GpuReport) -> LaunchRecord:
    return LaunchRecord(index=0, outcome="passed", wall_s=1.0, gpu_reports=list(cards))


def test_a_norm_has_the_slowest_gpu_of_the_median_launch() -> None:
    launches = [launch(card(sm_mhz=mhz, held={"power cap": mhz / 1e4}), card()) for mhz in (1000.0, 1200.0, 1100.0)]

    assert norm_of(launches) == GpuReport(sm_mhz=1100.0, power_limit_w=700.0, held={"power cap": 0.11})
    assert norm_of([launch()]) is None
    assert norm_of([launch(card(host_cpu="Grace"))]) == GpuReport(sm_mhz=1980.0, power_limit_w=700.0, host_cpu="Grace")


SLOWED, SM_MHZ = "GPU 0 was slowed down by", ": 1410 MHz; at the baseline 1980 MHz"
SET_TO = "the SM clock is set to 1200 MHz; at the baseline it was"


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        (NORM, {}, ""),
        (NORM, {"sm_mhz": 1500.0}, ""),
        (NORM, {"held": {"temperature": 0.05}}, ""),
        (NORM, {"held": {"temperature": 0.4}, "sm_mhz": 1410.0}, f"{SLOWED} temperature for 40% of the time{SM_MHZ}"),
        (NORM, {"held": {"power cap": 0.9}}, ""),
        (NORM, {"held": {"power cap": 0.5}, "sm_mhz": 1410.0}, ""),
        (NORM, {"held": {"power cap": 0.9}, "sm_mhz": 1410.0}, f"{SLOWED} power cap for 90% of the time{SM_MHZ}"),
        (GpuReport(held={"temperature": 0.4}), {"held": {"temperature": 0.45}}, ""),
        (None, {"held": {"power brake": 1.0}}, f"{SLOWED} power brake for 100% of the time"),
        (NORM, {"by_mps": True}, "kernels ran through MPS (nvidia-cuda-mps-server); at the baseline they did not"),
        (GpuReport(by_mps=True), {"by_mps": True}, ""),
        (GpuReport(by_mps=True), {}, ""),
        (None, {"by_mps": True}, ""),
        (NORM, {"power_limit_w": 500.0}, "the power limit is 500 W; at the baseline it was 700 W"),
        (GpuReport(power_limit_w=500.0), {}, ""),
        (NORM, {"sm_limit_mhz": 1200.0}, f"{SET_TO} free"),
        (GpuReport(sm_limit_mhz=1500.0), {"sm_limit_mhz": 1200.0}, f"{SET_TO} 1500 MHz"),
        (GpuReport(sm_limit_mhz=1200.0), {"sm_limit_mhz": 1200.0}, ""),
        (NORM, {"others": ["python (pid 4711)"]}, "GPU 0 was shared with python (pid 4711)"),
    ],
)
def test_a_gpu_throttled_more_than_before_is_the_reason(
    then: GpuReport | None, now: dict[str, Any], reason: str
) -> None:
    assert disturbance(then, [launch(card(**now))]) == reason


def test_the_gpu_is_named_that_was_held_down_and_on_the_cpu_none() -> None:
    hot = card(label="GPU 5", held={"temperature": 0.8})
    assert disturbance(NORM, [launch(card(), hot)]).startswith("GPU 5 was slowed down by temperature for 80%")

    hot = launch(card(held={"temperature": 1.0}))
    shared = launch(card(others=["python (pid 1)"]))
    assert disturbance(NORM, [launch(card()), launch(card()), hot]) == ""
    assert disturbance(NORM, [launch(card()), launch(card()), shared]) == ""
    assert disturbance(NORM, [launch(card()), shared, shared]) != ""

    assert disturbance(None, [launch()]) == ""
