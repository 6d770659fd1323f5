"""Beside other plugins of pytest, the real ones: what their reports hold of ours, and what ours say of theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.projects import run

from pytest_distbench.commands.cli import main

FLAKY = """
    import os
    from pathlib import Path

    def body(rank):
        pass

    def test_step(distbench, monkeypatch):
        attempts = Path("attempts")
        if attempts.exists() and len(attempts.read_text()) < 2:
            attempts.write_text(attempts.read_text() + "x")
            monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "2")
        distbench.run(body, params={"stand_in": {"step": 0.02, "latency[message_bytes=4096]": 1e-4}})
"""
"""Where there is a file ``attempts`` the first two attempts are slow."""

STEP = {"distbench.step": "20 ms, unchanged: +0.0 % (limit +10%), baseline 20 ms"}
SIZE = {"distbench.latency[message_bytes=4096]": "100 us, unchanged: +0.0 % (limit +10%), baseline 100 us"}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_reports_of_others_hold_the_numbers_and_a_test_that_is_run_again_counts_once(
    project: Callable[[str], pytest.Pytester], workers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    made = project(FLAKY)
    assert run(made, "--distbench-update").ret == 0
    Path("attempts").touch()
    result = made.runpytest_subprocess(
        *("-p", "no:sugar", "-p", "no:cacheprovider", "--reruns", "2", *workers),
        *("--junitxml=junit.xml", "--json-report", "--html=report.html", "--alluredir=allure"),
        "--distbench-json=run.json",
    )

    result.assert_outcomes(passed=1)
    before = "Regression: step +100.0 % (limit +10%), 2 of 2 metrics"
    result.stdout.fnmatch_lines(
        [
            "2 metrics of 1 case in 1 launch: 2 within limits",
            f"test_step?ws2? is flaky: passed at attempt 3, before: {before}",
        ]
    )
    (case,) = json.loads(Path("run.json").read_text())["results"]
    assert case["outcome"] == "passed"
    assert case["flaky"] == [before, before]
    assert main(["baseline", "accept", "run.json"]) == 0
    assert "0 changed" in capsys.readouterr().out

    last = ElementTree.parse("junit.xml").findall(".//testcase")[-1]
    assert {p.get("name"): p.get("value") for p in last.iter("property")} == STEP | SIZE
    (test,) = json.loads(Path(".report.json").read_text())["tests"]
    assert test["user_properties"] == [STEP, SIZE]
    assert STEP["distbench.step"] in Path("report.html").read_text()
    assert STEP["distbench.step"] in "".join(path.read_text() for path in Path("allure").glob("*-attachment.txt"))
