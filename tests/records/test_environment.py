"""What a launch ran on: hardware, software, GPUs, and what else computed there."""

from __future__ import annotations

import pytest

from pytest_distbench.records.environment import Gpu, Load


def test_a_label_is_what_nvidia_smi_shows() -> None:
    assert Gpu(name="X", uuid="GPU-1", index=3).label == "GPU 3"
    assert Gpu(name="X", uuid="MIG-123456789", index=3, slice_of="G").label == "the MIG slice MIG-12345678 of GPU 3"


@pytest.mark.parametrize(
    ("limit", "default", "is_capped"), [(700.0, 700.0, False), (500.0, 700.0, True), (None, 700.0, False)]
)
def test_a_card_is_capped_below_its_default(limit: float | None, default: float, is_capped: bool) -> None:
    assert Gpu(name="X", uuid="G", power_limit_w=limit, default_power_limit_w=default).is_capped is is_capped


def load(**changes: float) -> Load:
    """Two ranks that compute all the time on two cores, for 10 s, as far as others let them."""
    usual = {"wall_s": 10.0, "cpus": 2, "busy_s": 20.0, "own_s": 20.0, "ran_s": 20.0, "waited_s": 0.0}
    return Load(**{**usual, **changes})


def test_foreign_cores_are_what_the_launch_did_not_use_and_a_short_body_tells_none() -> None:
    assert load(wall_s=2.0, busy_s=4.0, own_s=2.0).foreign_cores == 1.0
    assert load(own_s=21.0).foreign_cores == 0.0

    short = load(wall_s=0.04)
    assert (short.foreign_cores, short.foreign_wanted, short.crowding) == (None, None, None)


def test_others_delay_what_wants_a_cpu_by_their_share_and_the_hosts() -> None:
    assert load().crowding == 1.0

    # A fifth of the cores is left; the cores in use, all of them, would say the same beside two
    crowded = load(own_s=4.0, ran_s=4.0, waited_s=16.0)
    assert crowded.foreign_cores == 1.6
    assert crowded.foreign_wanted == pytest.approx(8.0)
    assert crowded.crowding == pytest.approx(5.0)

    # A body that sleeps beside one busy loop; then its two helpers compute, and the loop has two thirds of a core
    sleeps = load(busy_s=10.1, own_s=0.1, ran_s=0.1, waited_s=0.0)
    helped = load(own_s=13.3, ran_s=13.3, waited_s=6.7)
    assert sleeps.foreign_wanted == pytest.approx(1.0)
    assert helped.foreign_wanted == pytest.approx(1.0, abs=0.02)

    # Two ranks and two helpers they started compute on two cores; then the same beside four others
    assert load(own_s=20.0, ran_s=20.0, waited_s=20.0).crowding == pytest.approx(1.0)
    assert load(own_s=10.0, ran_s=10.0, waited_s=30.0).crowding == pytest.approx(2.0)

    # It computes a hundredth of the time, and waits for a CPU five times as long as it computes
    assert load(own_s=0.1, ran_s=0.1, waited_s=0.5).crowding == pytest.approx(10 / 9.5)

    assert load(own_s=10.0, ran_s=10.0, stolen_s=10.0).crowding == pytest.approx(2.0)

    assert load(ran_s=0.0).crowding is None
