"""Histories for Apache Otava, which finds change points by E-divisive: a configuration, and the CSV files it names."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.trend import Point, Trend
from pytest_distbench.report.texts.escape import escape

CONFIGURATION = "otava.yaml"

_NO_NAME = re.compile(r"[^\w.-]+")


def otava_files(trends: Sequence[Trend]) -> dict[str, str]:
    """Content by the name of its file; ``otava analyze --config-file otava.yaml NAME`` is run where they lie.

    A test of Otava is a case on one class of hardware: a row for each run, a column for each metric. It refuses rows
    with holes, so that metrics which are not in the same runs are tests of their own.
    """
    tables: dict[tuple[object, ...], list[Trend]] = {}
    for trend in trends:
        runs = tuple((point.at, point.commit) for point in trend.points)
        tables.setdefault((trend.platform, trend.test, trend.case, runs), []).append(trend)
    files: dict[str, str] = {}
    tests: dict[str, Any] = {}
    for metrics in tables.values():
        name = _new_name(metrics[0], tests)
        files[f"{name}.csv"] = _csv(metrics)
        tests[name] = {
            "type": "csv",
            "file": f"{name}.csv",
            "time_column": "time",
            "attributes": ["commit"],
            "metrics": {
                escape(trend.metric): {
                    "column": escape(trend.metric),
                    "scale": 1,
                    "direction": -METRIC_KINDS[trend.better].sign,
                }
                for trend in metrics
            },
        }
    files[CONFIGURATION] = json.dumps({"tests": tests}, indent=2) + "\n"  # JSON is YAML
    return files


def _new_name(trend: Trend, taken: dict[str, Any]) -> str:
    name = _NO_NAME.sub("_", f"{trend.title}-{trend.platform}").strip("_")
    number = 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered


def _csv(metrics: Sequence[Trend]) -> str:
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(["time", "commit", *(escape(trend.metric) for trend in metrics)])
    rows: zip[tuple[Point, ...]] = zip(*(trend.points for trend in metrics), strict=True)
    for points in rows:
        write.writerow([points[0].at, points[0].commit, *(repr(point.value) for point in points)])
    return out.getvalue()
