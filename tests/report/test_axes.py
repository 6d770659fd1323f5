"""How a point of a metric is told."""

from __future__ import annotations

import pytest

from pytest_distbench.records.metric import Scalar
from pytest_distbench.report.axes import AXES, point_text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ({}, "latency"),
        ({"message_bytes": 4096}, "latency at 4 KiB"),
        ({"world_size": 4}, "latency at 4 ranks"),
        ({"seed": 3}, "latency of seed 3"),
        ({"seed": 3, "message_bytes": 8}, "latency at 8 B of seed 3"),
        ({"from": 1, "to": 3}, "latency from rank 1 to rank 3"),
        ({"calls": "each", "tensors": 214}, "latency with one call each in 214 tensors"),
        ({"calls": "coalesced", "tensors": 1}, "latency coalesced in 1 tensor"),
        ({"hook": "fp16"}, "latency with the hook fp16"),
        ({"level": 2}, "latency[level=2]"),
        ({"level": 2, "message_bytes": 8}, "latency[level=2] at 8 B"),
    ],
)
def test_a_point_is_told_by_its_axes(at: dict[str, Scalar], text: str) -> None:
    assert point_text("latency", at) == text


def test_an_axis_from_outside_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES, "level", lambda level: f"on level {level}")

    assert point_text("loss", {"level": 2}) == "loss on level 2"
