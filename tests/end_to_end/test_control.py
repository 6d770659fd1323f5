"""A slowdown that is injected into real launches: it passes in the ranks, is found if possible, and is not stored."""

from __future__ import annotations

import pytest
from support.launching import RunInside

from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

SUITE = """
    import time

    def steps(rank):
        for _ in rank.timed("step", warmup=1, iterations=40):
            time.sleep(0.002)
        rank.record("count", 7, better="exact")
        rank.record("loss_curve", [3.0, 2.0, 1.0], better="curve")

    def own(rank):
        rank.record("mine", 0.01, unit="s", better="lower")

    def test_step(distbench):
        assert distbench.run(steps).launches[0].delayed_s == 0

    def test_tolerant(distbench):
        distbench.run(steps, tolerance=2.0)

    def test_own(distbench):
        distbench.run(own)
"""


def test_an_injected_slowdown_beyond_the_tolerance_is_detected(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=SUITE)
    arguments = (
        "--distbench-control=1",
        "--distbench-strict",
        "--distbench-confirm=auto:0",
        "--distbench-json=r.json",
    )
    result = run_inside(*arguments, "test_it.py", "--world-size=2")
    cases = {case.case.function: case for case in read_run_record(pytester.path / "r.json").results}

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([
        "*a slowdown was not detected: A/B did not fail; no baseline: step injected +100.0 %, measured *",
        "   test_step?ws2?  *step  *detected, by A/B alone: no baseline *+100.0 %*10 *",
        "? nothing injected in test_own?ws2?: nothing in it *",
        "1 of 2 cases detected a slowdown of 100 %",
    ])  # fmt: skip
    for name in ("test_step", "test_tolerant"):
        control = cases[name].control
        assert control is not None
        [ratio] = [v.ratio for v in control.verdicts if v.metric == "step"]
        assert ratio is not None
        assert 1.8 < ratio < 2.6
    assert not (pytester.path / "baselines").exists()
