"""Trainings to a target as the lines that MLPerf's logging package prints and its parser reads.

A training is ``run_start``, an ``eval_accuracy`` for each evaluation and ``run_stop`` at the one that met the target,
so that the time between the two is the time to accuracy (mlcommons/logging, ``mlperf_logging/mllog/constants.py``).
What a submission needs besides, who submits and which rules were kept, no run knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import EVALUATED, EVERY, Measurement, Scalar
from pytest_distbench.records.record import Number
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.texts.words import point_text

_STEPS_TO = "steps_to_"


def write_mllog(record: RunRecord, out: BinaryIO) -> None:
    """Write every training of a run that has a target, one after the other.

    The moments of evaluations are those of steps of equal length: only the one that met the target was kept. A run
    begins when pytest did.

    Raises:
        DistbenchError: there is none.
    """
    began_ms = int(datetime.fromisoformat(record.started).timestamp() * 1000)
    lines = [
        line
        for result in record.results
        for launch in result.launches
        if launch.outcome == "passed"
        for line in _trainings(result, launch, began_ms)
    ]
    if not lines:
        raise DistbenchError("the run has no training to a target (rank.goal): --format mllog writes nothing else")
    out.write("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines).encode())


def _trainings(result: CaseResult, launch: LaunchRecord, began_ms: int) -> Iterator[dict[str, Any]]:
    """The events of the trainings of a launch: one for each goal and point."""
    points: dict[str, dict[str, Measurement]] = {}
    for measured in launch.measurements:
        points.setdefault(point_text("", measured.at), {})[measured.name] = measured
    place = {"file": result.case.test.partition("::")[0], "lineno": 0}
    for known in points.values():
        for name, steps in known.items():
            if steps.better == "steps" and name.startswith(_STEPS_TO):
                whose = {"case": result.case.title, "launch": launch.index + 1, **steps.at}
                for event in _events(name.removeprefix(_STEPS_TO), steps, known):
                    yield {
                        "namespace": "",
                        "time_ms": began_ms + round(event.at_s * 1000),
                        "event_type": event.kind,
                        "key": event.key,
                        "value": event.value,
                        "metadata": {**place, **whose, **event.more},
                    }


class _Event(NamedTuple):
    """One event of a training, so many seconds after it began."""

    key: str
    kind: str
    at_s: float
    value: Number | None = None
    more: Mapping[str, Scalar] = MappingProxyType({})


def _events(metric: str, steps: Measurement, known: Mapping[str, Measurement]) -> Iterator[_Event]:
    """The events of the training that took these steps to its target, or met it never."""
    time_to, evaluated = known.get(f"time_to_{metric}"), known.get(f"{EVALUATED}{metric}")
    if steps.value and time_to is not None and time_to.value is not None:
        step_s = time_to.value / steps.value
    else:
        step_s = known["step_time"].value or 0.0 if "step_time" in known else 0.0
    yield _Event("run_start", "INTERVAL_START", 0.0)
    step = 0
    if evaluated is not None:
        for value in evaluated.series:
            step += int(evaluated.facts[EVERY])
            yield _Event("eval_accuracy", "POINT_IN_TIME", step * step_s, value, {"step": step})
            if step == steps.value:
                break
    ended = {"status": "aborted" if steps.value is None else "success"}
    yield _Event("run_stop", "INTERVAL_END", (steps.value or step) * step_s, more=ended)
