"""Elastic jobs as a Chrome trace."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from support.results import result, run
from support.timelines import JOB, killed

from pytest_distbench.elastic.measures import measure
from pytest_distbench.elastic.trace import write_trace
from pytest_distbench.records.launch import LaunchRecord


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """Of two launches of a job that lost a node."""
    elastic, _ = measure(JOB, killed().history)
    launches = [LaunchRecord(index=i, outcome="passed", wall_s=20.0, elastic=elastic) for i in (0, 1)]
    out = io.BytesIO()
    write_trace(run(result(), result(launches=launches)), out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())["traceEvents"]
    return found


def test_a_trace_has_a_process_per_launch_and_a_row_per_slot(events: list[dict[str, Any]]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {1: "test_a[ws2], launch 1", 2: "test_a[ws2], launch 2"}

    spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"], e["args"]["generation"]) == (1, 0, 1)]
    assert [e["name"] for e in spans] == ["import", "group init", "build and load", "first step", "train on 1"]
    assert [e["ts"] for e in spans] == pytest.approx([16.0e6, 16.3e6, 16.6e6, 16.8e6, 17.0e6])
    assert [e["dur"] for e in spans] == pytest.approx([0.3e6, 0.3e6, 0.2e6, 0.2e6, 2.5e6])

    [change, _] = [event for event in events if event["ph"] == "i"]
    assert (change["name"], change["tid"], change["ts"]) == ("kill", 1, 12.5e6)
