"""The plugin together with other plugins of pytest: what their reports hold of ours, and what ours say about theirs."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.projects import run

from pytest_distbench.commands.cli import main

pytestmark = pytest.mark.other_plugins

ROOT = Path(__file__).parents[2]

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
"""A test whose first two attempts are slow if there is a file ``attempts``."""

SAME = "unchanged: +0.0 % (threshold +10%)"
STEP = {"distbench.step": f"20 ms, {SAME}, baseline 20 ms, mean launch"}
SIZE = {"distbench.latency[message_bytes=4096]": f"100 us, {SAME}, baseline 100 us, mean launch"}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_reports_of_others_hold_the_numbers_and_a_test_that_is_run_again_counts_once(
    project: Callable[[str], pytest.Pytester], workers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    made = project(FLAKY)
    assert run(made, "-p", "no:rerunfailures", "--distbench-update").ret == 0
    Path("attempts").touch()
    result = made.runpytest_subprocess(
        *("-p", "no:sugar", "-p", "no:cacheprovider", "--reruns", "2", *workers),
        *("--junitxml=junit.xml", "--json-report", "--html=report.html", "--alluredir=allure"),
        "--distbench-json=run.json",
    )

    result.assert_outcomes(passed=1)
    before = "Regression: step +100.0 % (threshold +10%), 2 of 2 metrics"
    result.stdout.fnmatch_lines(
        [
            "* metric* (* unchanged), 1 launch* in *",
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


HANG = """
    import time

    import pytest

    def fine(rank):
        rank.record("one", 1, better="exact")

    def hangs(rank):
        if rank.rank == 1:
            time.sleep(100)
        rank.barrier()

    def test_fine(distbench):  # torch is loaded then: what the other has is its own
        distbench.run(fine)

    @pytest.mark.timeout(12, method="thread")
    def test_hangs(distbench):
        distbench.measure(hangs)

    def test_next(distbench):
        distbench.run(fine)
"""


@pytest.mark.spawn
def test_before_pytest_timeout_strikes_the_ranks_show_where_they_are_and_the_run_goes_on(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=textwrap.dedent(HANG))
    result = pytester.runpytest_subprocess("-p", "no:sugar", "-p", "no:cacheprovider", "-p", "no:randomly")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*hung in body, *: rank 1 at test_it.py:10 in hangs; rank 0 waits in *; the time limit of its test was *",
            '*File "*test_it.py", line 10 in hangs',
        ]
    )


MEASURED = """
    def in_a_rank():
        return 1

    def at_its_end():
        done = True
        return done

    def body(rank):
        import atexit

        atexit.register(at_its_end)
        rank.record("one", in_a_rank(), better="exact")

    def test_it(distbench):
        distbench.run(body)

    def never():
        return 2
"""


@pytest.mark.spawn
@pytest.mark.parametrize("launcher_name", ["warm", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_the_recipe_of_the_docs_covers_what_runs_in_ranks_and_their_testcase_runs(
    pytester: pytest.Pytester, launcher_name: str
) -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    (recipe,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    (testcase,) = re.findall(r"```python\n(import unittest.*?)```", page, re.DOTALL)
    pytester.path.joinpath(".coveragerc").write_text(recipe)
    pytester.makepyfile(test_it=textwrap.dedent(MEASURED), test_mine=testcase)
    result = pytester.runpytest_subprocess(
        *("-p", "no:sugar", "-p", "no:cacheprovider", "--distbench-launcher", launcher_name),
        *("--cov", "--cov-report=term-missing", "--world-size=1"),
    )

    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines([r"test_it\.py +13 +1 +92% +18$"])
