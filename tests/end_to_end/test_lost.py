"""What a test measures no more, and what it catches: both fail it at its end."""

from __future__ import annotations

import pytest
from support.projects import Project, run, stored

from pytest_distbench.commands.cli import main

TEST = """
    import os
    import pytest

    STEP = {"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}}

    def body(rank):
        pass

    def test_step(distbench):
        if "LAUNCHES_NOTHING" in os.environ:
            return
        one = distbench.run(body, params=STEP)
        if "JUDGES_NOTHING" not in os.environ:
            distbench.judge("efficiency", lambda a: a["step"], of=one, better="higher")

    def test_catches(distbench):
        try:
            distbench.run(body, params=STEP)
        except BaseException:
            if "SKIPS" in os.environ:
                pytest.skip("caught")
"""


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    assert run(made).ret == 0
    return made


def test_a_judge_that_is_not_called_any_more_is_red_and_says_what_takes_it_out(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGES_NOTHING", "1")
    result = run(recorded, "-k", "test_step")

    result.stdout.fnmatch_lines(
        [
            "ws2:efficiency.gloo.stand-in: in the baseline, and not measured by this test",
            "  ws2:efficiency.gloo.stand-in  *ws2%3Aefficiency.gloo.stand-in.json",
            "If this is intended:  distbench baseline prune --baselines * -k 'test_it.py::test_step?ws2:eff* --delete",
            "reproduce  pytest 'test_it.py::test_step?ws2?'",
        ]
    )
    assert result.ret == 1


def test_a_test_that_launches_nothing_any_more_is_red(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHES_NOTHING", "1")
    result = run(recorded)

    result.stdout.fnmatch_lines(["ws2.gloo.stand-in and 1 more: in the baseline, and not measured by this test"])
    assert result.ret == 1


@pytest.mark.parametrize("option", ["--distbench-update", "--distbench-prune", "--distbench-platform=other"])
def test_nothing_is_lost_where_the_store_is_being_changed_or_is_another(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("JUDGES_NOTHING", "1")

    assert run(recorded, option).ret == 0


def test_a_regression_that_the_test_catches_fails_it_at_its_end(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    result = run(recorded, "-k", "test_catches")

    result.stdout.fnmatch_lines(
        [
            "step +50* % (threshold +10%)",
            "the test caught this failure and went on, but it fails all the same*xfail_perf*",
        ]
    )
    assert result.ret == 1


def test_the_printed_command_takes_it_out(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGES_NOTHING", "1")
    name = "test_it.py::test_step[ws2:efficiency.gloo.stand-in]"
    monkeypatch.chdir(recorded.path)
    assert main(["baseline", "prune", "--baselines", "baselines", "-k", name, "--delete"]) == 0

    assert run(recorded, "-k", "test_step").ret == 0
    assert len(stored(recorded)) == 2


def test_what_the_test_catches_stays_where_it_then_skips(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    monkeypatch.setenv("SKIPS", "1")

    assert run(recorded, "-k", "test_catches").ret == 1
