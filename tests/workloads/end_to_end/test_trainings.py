"""What a user sees of a training's verdicts. Ranks are made up; DISTBENCH_STAND_IN_FACTOR bends the curve."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.projects import run

from pytest_distbench.frames import read_run

TEST = """
    def body(rank):
        pass

    def test_train(distbench):
        distbench.run(body, params={"stand_in": {"loss!curve": [[2.303, 2.101, 1.897]]}})
"""


@pytest.fixture
def recorded(project: Callable[[str], pytest.Pytester]) -> pytest.Pytester:
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    return made


def test_a_golden_curve_is_stored_once_with_nine_digits(recorded: pytest.Pytester) -> None:
    [path] = recorded.path.rglob("baselines/**/*.json")
    entry = json.loads(path.read_text())["entry"]

    assert entry["metrics"]["loss"]["values"] == [2.303, 2.101, 1.897]
    assert "[2.303, 2.101, 1.897]" in path.read_text()


def test_other_digits_under_the_same_software_pass_as_numerics_until_recorded(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.0000001")
    changed = run(recorded)
    updated = run(recorded, "--distbench-update")
    after = run(recorded)

    changed.stdout.fnmatch_lines(
        ["~ test_train?ws2? loss: numerics changed within the tolerance, from step 1 on, by up to 1.0e-07*"]
    )
    updated.stdout.fnmatch_lines(["baselines in *: 1 changed, 0 new, 0 kept"])
    after.stdout.no_fnmatch_line("~ *")
    assert (changed.ret, updated.ret, after.ret) == (0, 0, 0)


def test_a_diverging_curve_fails_with_step_size_and_what_to_look_at(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.98")
    result = run(recorded)

    result.stdout.fnmatch_lines(
        [
            "loss: diverges at step 1, differs by up to 2.0 %",
            "!  loss *differs by up to 2.0 % at step * *0.1 % *2*",
            "loss: the 2 launches of this run agree, so it is seeded; likely causes, *sh*",
            "intended[?]  pytest *--distbench-update, then*",
        ]
    )
    assert result.ret == 1


def test_an_unseeded_training_is_reported_at_the_update_and_passes_after_it(
    project: Callable[[str], pytest.Pytester],
) -> None:
    """Its curve cannot be followed: of ten launches that differ none is worse. In strict mode that is a failure."""
    made = project(TEST.replace("[[2.303, 2.101, 1.897]]", "[[2.303, 2.101, 1.897], [2.5, 2.2, 1.8], [2.1, 2.0, 1.9]]"))
    updated = run(made, "--distbench-update")
    after = run(made)
    strict = run(made, "--distbench-strict")

    updated.stdout.fnmatch_lines(
        ["x test_train?ws2? loss: its launches differ by up to 8.8e-02 from the first value on: seed it: torch*"]
    )
    after.stdout.fnmatch_lines(
        [
            "* metric* (*1 inconclusive*), 1 launch* in *",
            "x test_train?ws2? loss: the baseline's launches differ by up to 8.8e-02 from the first value on: seed *",
        ]
    )
    assert (updated.ret, after.ret, strict.ret) == (0, 0, 1)


@pytest.mark.parametrize("curve", [[0.0, 0.0, 0.0], [2.30258512] * 10, [2.3] * 4])
def test_a_training_that_does_not_learn_is_reported_with_and_without_a_baseline(
    project: Callable[[str], pytest.Pytester], curve: list[float]
) -> None:
    made = project(TEST.replace("[2.303, 2.101, 1.897]", str(curve)))
    first, updated, after = run(made), run(made, "--distbench-update"), run(made)
    strict, missing = run(made, "--distbench-strict"), run(made, "--distbench-no-baseline=fail")

    for result in (first, updated, after):
        result.stdout.fnmatch_lines([f"[?] test_train?ws2? loss: the losses do not change: all {len(curve)} are *"])
    assert (first.ret, updated.ret, after.ret, strict.ret, missing.ret) == (0, 0, 0, 1, 0)


def test_all_seeds_share_a_verdict_that_names_the_one_that_diverged(
    project: Callable[[str], pytest.Pytester], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(
        TEST.replace(
            '"loss!curve": [[2.303, 2.101, 1.897]]', '"loss[seed=0]!curve": [[2.3]], "loss[seed=7]!curve": [[2.2]]'
        )
    )
    assert run(made, "--distbench-update").ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.98")
    result = run(made, "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["loss: diverges at step 1, differs by up to 2.0 % (seed 7)"])
    assert read_run(made.path / "run.json").verdict.tolist() == ["changed"] * 4
