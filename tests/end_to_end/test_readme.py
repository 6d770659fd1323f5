"""The examples of the README and of docs/writing.md run as they say. For every page: ``tests/test_documents.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.launching import RunInside

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md").read_text() + (ROOT / "docs" / "writing.md").read_text()
COMMAND = ("--world-size", "2")


def example(part: str) -> str:
    """The Python example with this in it."""
    [found] = [block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if part in block]
    return str(found)


@pytest.mark.spawn
def test_the_example_runs_as_described(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_step=example("range(20)"), test_mine=example("def body(rank)"), test_sweep=example("collective_sweep(")
    )
    result = pytester.runpytest_subprocess(*COMMAND, "-v", "-rs")

    result.stdout.fnmatch_lines(
        [
            "*test_mine?ws2? NEW*",
            "*test_mine?ws4? SKIPPED*",
            "*test_step?ws2? NEW*",
            "*test_all_reduce?ws2? NEW*",
            "*not run: needs 4 ranks, 2 given*",
        ]
    )
    assert result.ret == 0


@pytest.mark.spawn
def test_a_number_of_several_runs_and_the_phases_of_a_loop_are_as_described(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    pytester.makepyfile(test_scaling=example("def test_efficiency(distbench)"))
    result = run_inside(*COMMAND, "-v", "--distbench-launches=2", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["*test_step?ws2? NEW*", "*test_efficiency?ws2? NEW*"])
    assert result.ret == 0
    cases = json.loads((pytester.path / "run.json").read_text())["results"]
    judged = {case["case"]["run"]: {v["metric"] for v in case["verdicts"]} for case in cases}
    assert {"step", "phase/step/forward"} <= judged[""]
    assert [metrics for metrics in judged.values() if "efficiency" in metrics] == [{"efficiency"}]
    [step] = [case for case in cases if not case["case"]["run"]]
    measured = {m["name"]: m for m in step["launches"][0]["measurements"]}
    assert measured["phase/step/forward"]["summary"]["n"] == 30
    assert measured["step"]["identity"] == {"layers": 1}
    assert (measured["phase/step/backward"]["better"], measured["phase/step/forward"]["better"]) == ("info", "lower")
