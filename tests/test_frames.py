"""A run record as a data frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.projects import TEST, Project, run

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.frames import read_distributions, read_run


def test_a_run_record_becomes_a_data_frame(project: Project) -> None:
    made = project(TEST)
    run(made, "--distbench-json=run.json")
    frame = read_run(made.path / "run.json")

    assert frame[["case", "launch", "metric", "value", "verdict"]].to_dict("records") == [
        {"case": "ws2", "launch": 0, "metric": "step", "value": 0.02, "verdict": "missing"},
        {"case": "ws2", "launch": 0, "metric": "count", "value": 7.0, "verdict": "missing"},
    ]


def test_the_iterations_of_a_launch_become_a_data_frame(project: Project) -> None:
    made = project("""
        def body(rank):
            pass

        def test_step(distbench):
            distbench.run(body, params={"stand_in": {"step": [[0.3, 0.1, 0.2], [0.1, 0.1, 0.4]]}}, launches=2)
        """)
    run(made, "--distbench-json=run.json")
    frame = read_distributions(made.path / "run.json")

    assert set(frame.metric) == {"step"}
    assert frame[["launch", "quantile", "value"]].to_numpy().tolist() == [
        [0, 0.0, 0.1], [0, 0.5, 0.2], [0, 1.0, 0.3],
        [1, 0.0, 0.1], [1, 0.5, 0.1], [1, 1.0, 0.4],
    ]  # fmt: skip


@pytest.mark.parametrize("read", [read_run, read_distributions])
def test_a_run_record_is_read_by_its_path(read: Callable[[Any], object]) -> None:
    wanted = f"{read.__name__}: path=3; wanted the path of a file that --distbench-json"  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=wanted):
        read(3)
