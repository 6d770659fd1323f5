"""From the arguments of a call, the markers of its test and the run's settings to what is launched."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.projects import Project, run, stored

MANY = 4
"""More than the run was given, and than the cores that are pretended."""
TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(
            body, world_size={ranks}, params={{"stand_in": {{"step": [0.02, 0.0201], "count!exact": 7}}}}{more}
        )
"""
OTHER_LAUNCHER = """
    from dataclasses import replace

    import pytest

    from pytest_distbench.launch.starters import LAUNCHERS

    pytest_plugins = ["pytest_distbench.testing"]

    def pytest_collection_finish(session):
        patch = pytest.MonkeyPatch()
        session.config.add_cleanup(patch.undo)
        patch.setitem(LAUNCHERS, "stand-in", replace(LAUNCHERS["stand-in"], {change}))
"""
"""The made-up launcher with something else in its row."""


def test_where_the_test_asks_for_it_they_are_run_and_no_clock_becomes_a_baseline(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST.format(ranks=MANY, more=", oversubscribed=True"))
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    run(made, "--distbench-update").assert_outcomes(passed=1)
    [entry] = [json.loads(path.read_text())["entry"] for path in stored(made)]

    assert list(entry["metrics"]) == ["count"]
    assert entry["conditions"]["around"] == {"oversubscribed": "2-cores"}


def test_there_is_an_end_to_oversubscription(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    result = run(project(TEST.format(ranks=65, more=", oversubscribed=True")))
    result.assert_outcomes(failed=1)

    assert "65 ranks; at most 64 can run here (32 a core, of 2)" in result.stdout.str()


def test_with_gpus_each_rank_has_its_own_whatever_the_test_says(project: Project, gpus: Callable[[int], None]) -> None:
    gpus(2)
    result = run(project(TEST.format(ranks=4, more=", oversubscribed=True")), "--gpu", "-rs")

    result.stdout.fnmatch_lines(["*not run: needs 4 ranks, 2 given*"])


def test_a_quota_is_part_of_the_name(project: Project) -> None:
    made = project(TEST.format(ranks=2, more=", cpus=0.3"))
    run(made, "--distbench-update").assert_outcomes(passed=1)
    [path] = stored(made)

    assert path.name == "ws2%3A@ws2@cpus=0.3.gloo.stand-in.json"
    assert json.loads(path.read_text())["entry"]["conditions"]["around"] == {"cpus": "0.3"}
    result = run(project(TEST.format(ranks=2, more="")), "--distbench-confirm=off", "-v")
    result.stdout.fnmatch_lines(["*1 case measured, nothing to compare with*"])


@pytest.mark.parametrize("cpus", ["0", "-1", "'x'", "True", "float('nan')", "3"])
def test_a_quota_that_no_rank_can_have_is_refused(project: Project, cpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    result = run(project(TEST.format(ranks=2, more=f", cpus={cpus}")))

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*distbench.run: cpus=*; wanted a finite number of at least 0.01, at most 2 (*"])


def test_ranks_of_other_hosts_have_no_quota(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(TEST.format(ranks=2, more=", cpus=0.3"))
    made.makeconftest(OTHER_LAUNCHER.format(change='hosts="many"'))
    result = run(made, "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not run: a CPU quota needs ranks on this host, and stand-in starts them on others*"])


def test_without_clocks_a_quota_is_no_use(project: Project) -> None:
    result = run(project(TEST.format(ranks=2, more=", cpus=0.3")), "--distbench-backend", "fake", "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not run: a CPU quota changes timings, and the fake backend has none*"])


def test_more_ranks_than_given_are_not_run(project: Project) -> None:
    result = run(project(TEST.format(ranks=3, more="")), "-rs")

    result.stdout.fnmatch_lines(["*not run: needs 3 ranks, 2 given*"])
    result.assert_outcomes(skipped=1)


def test_a_word_in_place_of_yes_or_no_is_refused(project: Project) -> None:
    result = run(project(TEST.format(ranks=2, more=", oversubscribed='yes'")))

    result.stdout.fnmatch_lines(["*oversubscribed='yes'?*True or False*"])
