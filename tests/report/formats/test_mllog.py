"""Trainings as MLPerf's lines."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from mlperf_logging.compliance_checker.mlp_parser.ruleset_510 import parse_generator
from support.results import result, run

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.report.formats import FORMATS


def training(seed: int, *evaluated: float, reached_at: int | None, time_s: float | None = None) -> list[Measurement]:
    at = {"seed": seed}
    found = [
        Measurement(name="steps_to_accuracy", unit="steps", better="steps", value=reached_at, at=at),
        Measurement(name="step_time", unit="s", better="lower", value=0.5, at=at),
        Measurement(
            name="evaluated_accuracy", unit="", better="info", value=evaluated[0], series=[*evaluated], at=at,
            facts={"every": 5},
        ),
    ]  # fmt: skip
    if time_s is not None:
        found.append(Measurement(name="time_to_accuracy", unit="s", better="lower", value=time_s, at=at))
    return found


def launch(*measured: Measurement) -> LaunchRecord:
    return LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[*measured])


def written(*launches: LaunchRecord) -> list[str]:
    out = io.BytesIO()
    FORMATS["mllog"].write(run(result(launches=[*launches])), {}, out)
    return out.getvalue().decode().splitlines()


def lines(*launches: LaunchRecord) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in written(*launches)]


def test_a_training_ends_at_the_evaluation_that_met_its_target() -> None:
    start, first, second, stop = lines(launch(*training(3, 0.5, 0.9, 0.95, reached_at=10, time_s=7.0)))

    assert [line["key"] for line in (start, first, second, stop)] == [
        "run_start", "eval_accuracy", "eval_accuracy", "run_stop",
    ]  # fmt: skip
    assert [line["time_ms"] - start["time_ms"] for line in (first, second, stop)] == [3500, 7000, 7000]
    assert (first["value"], second["value"]) == (0.5, 0.9)
    assert second["metadata"] == {
        "file": "suites/test_a.py", "lineno": 0, "case": "test_a[ws2]", "launch": 1, "seed": 3, "step": 10,
    }  # fmt: skip
    assert stop["metadata"]["status"] == "success"
    assert {line["event_type"] for line in (start, stop)} == {"INTERVAL_START", "INTERVAL_END"}


def test_one_that_missed_its_target_was_aborted_after_its_last_evaluation() -> None:
    *_, last, stop = lines(launch(*training(0, 0.5, 0.6, reached_at=None)))

    assert last["time_ms"] == stop["time_ms"]
    assert stop["metadata"]["status"] == "aborted"


def test_seeds_are_trainings_of_their_own() -> None:
    found = lines(launch(*training(0, 0.9, reached_at=5, time_s=1.0), *training(1, 0.9, reached_at=5, time_s=2.0)))

    assert [line["metadata"]["seed"] for line in found if line["key"] == "run_stop"] == [0, 1]


def test_a_run_without_a_goal_has_none() -> None:
    with pytest.raises(DistbenchError, match="no training to a target"):
        lines(launch())


def test_the_parser_of_mlperf_takes_every_line() -> None:
    taken, refused = parse_generator(written(launch(*training(0, 0.5, 0.9, reached_at=10, time_s=2.0))))

    assert [line.key for line in taken] == ["run_start", "eval_accuracy", "eval_accuracy", "run_stop"]
    assert taken[-1].timestamp - taken[0].timestamp == 2000
    assert not refused
