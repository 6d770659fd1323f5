"""A run record as a data frame."""

from __future__ import annotations

import pytest
from support.projects import TEST, Project, run

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.frames import read_run


def test_a_run_record_becomes_a_data_frame(project: Project) -> None:
    made = project(TEST)
    run(made, "--distbench-json=run.json")
    frame = read_run(made.path / "run.json")

    assert frame[["case", "launch", "metric", "value", "verdict"]].to_dict("records") == [
        {"case": "ws2", "launch": 0, "metric": "step", "value": 0.02, "verdict": "missing"},
        {"case": "ws2", "launch": 0, "metric": "count", "value": 7.0, "verdict": "missing"},
    ]


def test_a_run_record_is_read_by_its_path() -> None:
    with pytest.raises(ConfigurationError, match="read_run: path=3; wanted the path of a file that --distbench-json"):
        read_run(3)  # type: ignore[arg-type]
