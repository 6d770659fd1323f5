"""Each number that a run prints, made again of the launches in its record and of those in the baseline's file."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S
from support.repositories import git

from pytest_distbench.records.run import STATISTICS
from pytest_distbench.units import format_change, format_quantity

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

SUITE = """
    import work

    def body(rank):
        noise = [1 + 0.003 * ((7 * i + 3 * rank.launch) % 5) for i in range(10)]
        rank.record("step", [x * work.SECONDS for x in noise], unit="s", better="lower")
        rank.record("rate", 1000 / work.SECONDS, unit="samples/s", better="higher")

    def test_step(distbench):
        distbench.run(body, tolerance=0.3)
"""
WORK = "SECONDS = {seconds}\n"
"""They are recorded, not measured: whatever else this machine does, they are these."""


@pytest.fixture
def project(pytester: pytest.Pytester, run_inside: RunInside) -> Path:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=SUITE)
    (pytester.path / ".gitignore").write_text("__pycache__/\nrun.json\n")
    (pytester.path / "work.py").write_text(WORK.format(seconds="0.010"))  # of another size than what follows
    git(pytester.path, "init", "--quiet")
    commit(pytester.path)
    run_inside("--distbench-update", "--distbench-launches=5").assert_outcomes(passed=1)
    commit(pytester.path)
    return pytester.path


def commit(project: Path) -> None:
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "x")


def measured(launches: list[Any], name: str) -> list[tuple[float, float | None]]:
    """Value and fastest iteration of each launch."""
    found = [m for launch in launches for m in launch["measurements"] if m["name"] == name]
    return [(m["value"], m.get("spread") and m["spread"]["minimum"]) for m in found]


def made_again(verdict: dict[str, Any], case: dict[str, Any], stored: dict[str, Any]) -> tuple[float, float]:
    """This run and baseline of a verdict, as :data:`STATISTICS` says that they are made."""
    name, statistic = verdict["metric"], verdict["statistic"]
    assert statistic in STATISTICS
    turns = case["confirmation"] or {}
    is_confirmed = statistic.startswith("A/B") or verdict["code"] in ("cleared", "slower-machine")
    now = measured(turns["launches"] if turns and is_confirmed else case["launches"], name)
    if turns and statistic.startswith("A/B"):
        pairs = [measured(turns[side], name) for side in ("references", "controls")]
    else:
        pairs = [measured(case["reference"]["launches"], name)]
    of_file = list(
        zip(stored[name]["launches"], stored[name].get("spread", {}).get("minimum") or [None] * 99, strict=False)
    )
    is_stored = case["reference"]["kind"] == "stored" and not statistic.startswith("A/B")
    then = of_file if is_stored else [launch for side in pairs for launch in side]
    if statistic == "median":
        return median(value for value, _ in now), median(value for value, _ in then)
    if statistic.endswith("sqrt(min x p25)"):
        now, then = ([(math.sqrt(value * least), None) for value, least in side] for side in (now, then))  # type: ignore[operator]
    return geometric_mean(value for value, _ in now), geometric_mean(value for value, _ in then)


@pytest.mark.parametrize(
    ("options", "seconds", "statistics"),
    [
        (["--distbench-confirm=off"], 0.0105, {"sqrt(min x p25)", "geometric mean", "median"}),
        (["--distbench-against=HEAD^"], 0.02, {"A/B", "median"}),
        pytest.param(
            ["--distbench-confirm=always:300"],
            0.02,
            {"A/B sqrt(min x p25)", "A/B", "median"},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["stored", "A/B", "confirmed"],
)
def test_every_printed_number_can_be_made_again_of_the_record(
    project: Path, run_inside: RunInside, options: list[str], seconds: float, statistics: set[str]
) -> None:
    (project / "work.py").write_text(WORK.format(seconds=seconds))
    commit(project)
    result = run_inside(*options, "--distbench-json=run.json", "--distbench-launches=3", "-v")
    [case] = json.loads((project / "run.json").read_text())["results"]
    [path] = (project / "baselines").rglob("*.json")
    stored = json.loads(path.read_text())["entry"]["metrics"]

    shown = [v for v in case["verdicts"] if v["ratio"] is not None]
    assert {v["statistic"] for v in shown} == statistics
    for verdict in shown:
        now, then = made_again(verdict, case, stored)
        assert (verdict["current"], verdict["baseline"]) == pytest.approx((now, then)), verdict
        assert verdict["ratio"] == pytest.approx(now / then)
        unit = verdict["unit"]
        *_, row = (line for line in result.outlines if line[3:].startswith(f"{verdict['metric']} "))
        numbers = [format_quantity(now, unit), format_quantity(then, unit), format_change(now / then)]
        assert re.search(" +".join(map(re.escape, numbers)), row), row
