"""A GPU as people point to it, and whether its power is limited."""

from __future__ import annotations

import pytest

from pytest_distbench.records.gpu import Gpu


def test_a_label_is_what_nvidia_smi_shows() -> None:
    assert Gpu(name="X", uuid="GPU-1", index=3).label == "GPU 3"
    assert Gpu(name="X", uuid="MIG-123456789", index=3, slice_of="G").label == "the MIG slice MIG-12345678 of GPU 3"


@pytest.mark.parametrize(
    ("limit", "default", "is_capped"), [(700.0, 700.0, False), (500.0, 700.0, True), (None, 700.0, False)]
)
def test_a_card_is_capped_below_its_default(limit: float | None, default: float, is_capped: bool) -> None:
    assert Gpu(name="X", uuid="G", power_limit_w=limit, default_power_limit_w=default).is_capped is is_capped
