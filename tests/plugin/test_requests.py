"""What is launched, from the arguments of a call, the markers of its test and the run's settings."""

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
        distbench.run(body, params={{"stand_in": {{"step": [0.02, 0.0201], "count!exact": 7}}}}, world_size={})
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
"""The simulated launcher with something else in its row."""


def test_oversubscribed_ranks_run_and_no_timing_becomes_a_baseline(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST.format(f"{MANY}, oversubscribed=True"))
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    run(made, "--distbench-update").assert_outcomes(passed=1)
    [entry] = [json.loads(path.read_text())["entry"] for path in stored(made)]

    assert list(entry["metrics"]) == ["count"]
    assert entry["conditions"]["around"] == {"oversubscribed": "2-cores"}


QUOTA = "not run: a CPU quota"
NO_QUOTA = "*distbench.run: cpus=*; wanted a finite number of at least 0.01, at most 2 (*"


@pytest.mark.parametrize(
    ("call", "options", "text"),
    [
        ("65, oversubscribed=True", "", "*65 ranks; at most 64 can run here (32 a core, of 2)*"),
        (f"{MANY}, oversubscribed=True", "--gpu", "*not run: needs 4 ranks, 2 given*"),
        ("3", "", "*not run: needs 3 ranks, 2 given*"),
        ("2, cpus=0.3", "--distbench-backend=fake", f"*{QUOTA} changes timings, and the fake backend has none*"),
        *((f"2, cpus={cpus}", "", NO_QUOTA) for cpus in ("0", "-1", "'x'", "True", "float('nan')", "3")),
        ("2, oversubscribed='yes'", "", "*oversubscribed='yes'?*True or False*"),
    ],
)
def test_a_call_that_cannot_run_as_asked_for_is_skipped_or_refused(
    project: Project, gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, call: str, options: str, text: str
) -> None:
    """On two cores, with two GPUs: with GPUs each rank has its own, whatever the test says."""
    gpus(2)
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    result = run(project(TEST.format(call)), *options.split(), "-rs")

    result.assert_outcomes(**{"skipped" if "not run" in text else "failed": 1})
    result.stdout.fnmatch_lines([text])


def test_a_quota_is_part_of_the_name(project: Project) -> None:
    made = project(TEST.format("2, cpus=0.3"))
    run(made, "--distbench-update").assert_outcomes(passed=1)
    [path] = stored(made)

    assert path.name == "ws2%3A@ws2@cpus=0.3.gloo.stand-in.json"
    assert json.loads(path.read_text())["entry"]["conditions"]["around"] == {"cpus": "0.3"}
    result = run(project(TEST.format("2")), "--distbench-confirm=off", "-v")
    result.stdout.fnmatch_lines(["*1 case measured, nothing to compare with*"])


def test_ranks_of_other_hosts_have_no_quota(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(TEST.format("2, cpus=0.3"))
    made.makeconftest(OTHER_LAUNCHER.format(change='hosts="many"'))
    result = run(made, "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not run: a CPU quota needs ranks on this host, and stand-in starts them on others*"])
