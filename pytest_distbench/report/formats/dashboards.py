"""The judged numbers of a run for dashboards of others: medians over launches, with their spread."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.case import by_metric
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.texts.escape import escape

_NO_WORD = re.compile(r"[^a-zA-Z0-9_]+")

_WORDS = {1: "lower", -1: "higher"}

_UNITS = {"s": "seconds", "B": "bytes", "B/s": "bytes_per_second"}
"""As OpenMetrics spells them, in base units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A judged metric of a case.

    Attributes:
        result: the case.
        measurement: of one of its launches, for its name, unit and direction.
        values: of all launches that have one, in the unit.
    """

    result: CaseResult
    measurement: Measurement
    values: list[float]

    @property
    def case(self) -> str:
        """Its name among all of a repository: ``suites/test_a.py::test_a[ws2.gloo.warm]``."""
        return f"{self.result.case.test}[{self.result.case.key}]"

    @property
    def sign(self) -> int:
        """1: lower is better; -1: higher is; 0: it has to be equal."""
        return METRIC_KINDS[self.measurement.better].sign

    @property
    def median(self) -> float:
        """Over launches."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation between launches; 0 of one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def numbers(record: RunRecord) -> Iterator[Number]:
    """What is judged of each case, without curves and whatever has no value."""
    for result in record.results:
        launches = [launch for launch in result.launches if launch.outcome == "passed"]
        for found in by_metric(launches).values():
            values = [float(m.value) for m in found if m.value is not None]
            if values and found[0].is_judged and METRIC_KINDS[found[0].better].shape != "series":
                yield Number(result=result, measurement=found[0], values=values)


def write_github_action_benchmark(better: str) -> Callable[[RunRecord, BinaryIO], None]:
    """A writer for ``customSmallerIsBetter`` or ``customBiggerIsBetter`` of benchmark-action/github-action-benchmark.

    Its file has one direction, and may not be empty.
    """
    sign = {"smaller": 1, "bigger": -1}[better]

    def write(record: RunRecord, out: BinaryIO) -> None:
        rows = [
            {
                "name": f"{number.case} {number.measurement.key}",
                "unit": number.measurement.unit or "1",
                "value": number.median,
                "range": f"± {number.spread:.3g}",
                "extra": f"{len(number.values)} launches on {number.result.environment.platform}",
            }
            for number in numbers(record)
            if number.sign == sign
        ]
        if not rows:
            raise DistbenchError(f"no judged number is better {_WORDS[sign]} in this run, and a file may not be empty")
        _write_json(rows, out)

    return write


def write_bencher(record: RunRecord, out: BinaryIO) -> None:
    """The metric format of Bencher: benchmark -> measure -> value, and where the launches lie."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for number in numbers(record):
        measured = {"value": number.median, "lower_value": min(number.values), "upper_value": max(number.values)}
        found.setdefault(number.case, {})[number.measurement.key] = measured
    _write_json(found, out)


def write_pytorch_benchmark(record: RunRecord, out: BinaryIO) -> None:
    """Records of PyTorch's benchmark database, as ``upload-benchmark-results`` of pytorch/test-infra takes them."""
    _write_json(
        [
            {
                "benchmark": {
                    "name": number.case,
                    "extra_info": {
                        "platform": number.result.environment.platform,
                        "world_size": str(number.result.case.world_size),
                        "backend": number.result.case.conditions.backend,
                        "commit": record.commit,
                    },
                },
                "model": {"name": number.result.case.function, "type": "", "backend": number.result.case.device},
                "metric": {
                    "name": number.measurement.key,
                    "unit": number.measurement.unit,
                    "benchmark_values": number.values,
                },
            }
            for number in numbers(record)
        ],
        out,
    )


def write_open_metrics(record: RunRecord, out: BinaryIO) -> None:
    """Gauges in OpenMetrics text, one family per metric and unit, points as labels.

    Without time stamps, which the textfile collector of node_exporter refuses.
    """
    families: dict[tuple[str, str], list[str]] = {}
    for number in numbers(record):
        unit = _UNITS.get(number.measurement.unit) or _word(number.measurement.unit.replace("/s", "_per_second"))
        name = "_".join(filter(None, ["distbench", _word(number.measurement.name), unit]))
        labels = {
            "test": number.result.case.test,
            "case": number.result.case.key,
            "platform": number.result.environment.platform,
            **{f"at_{_word(axis)}": str(value) for axis, value in number.measurement.at.items()},
        }
        told = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
        families.setdefault((name, unit), []).append(f"{name}{{{told}}} {number.median!r}")
    for (name, unit), samples in families.items():
        head = [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else [])]
        out.write("".join(f"{line}\n" for line in [*head, *samples]).encode())
    out.write(b"# EOF\n")


def _word(text: str) -> str:
    return _NO_WORD.sub("_", text).strip("_")


def _escaped(text: str) -> str:
    return escape(text).replace("\\", r"\\").replace('"', r"\"")


def _write_json(content: object, out: BinaryIO) -> None:
    out.write(json.dumps(content, indent=1).encode() + b"\n")
