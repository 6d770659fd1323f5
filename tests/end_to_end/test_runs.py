"""Whole runs with real process groups: an injected slowdown, an injected defect, a hang, and what stays behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.launching import RunInside

pytestmark = pytest.mark.spawn

ROOT = Path(__file__).parents[2]

SLOW = """
    import os, time

    def body(rank):
        for _ in rank.timed("step", warmup=1, iterations=8):
            time.sleep(0.02 * float(os.environ.get("SLOWER", "1")))

    def test_step(distbench):
        distbench.run(body, tolerance=0.25)
"""

FAILING = """
    import time

    import pytest

    def raises(rank):
        rank.barrier()
        if rank.rank == 1:
            value = 41
            assert value == 42, "the answer"
        rank.barrier()

    def hangs(rank):
        rank.barrier()
        if rank.rank == 1:
            time.sleep(100)
        rank.barrier()

    def expects(rank):
        pytest.xfail("known")

    def fine(rank):
        rank.record("one", 1, better="exact")

    def test_raises(distbench):
        distbench.run(raises)

    def test_hangs(distbench):
        distbench.run(hangs, timeout=4)

    def test_fine(distbench):
        distbench.run(fine)

    def test_expects(distbench):
        distbench.run(expects)

    def test_broken(distbench):
        distbench.run("broken.py::body")
"""


def test_a_body_slowed_by_half_fails_and_passes_when_put_back(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_slow=SLOW)
    assert run_inside("--distbench-update").ret == 0
    monkeypatch.setenv("SLOWER", "1.5")
    slower = run_inside()
    monkeypatch.delenv("SLOWER")
    back = run_inside()

    slower.stdout.fnmatch_lines(["step +*% (threshold +*%)", "intended[?]  pytest *--distbench-update, then*"])
    assert slower.ret == 1
    assert back.ret == 0


def test_failures_are_explained_and_the_run_goes_on(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(test_failing=FAILING)
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--data')")
    (pytester.path / "broken.py").write_text("def body(rank)\n    pass\n")
    result = run_inside("--data", "here", "-v", "test_failing.py")

    result.assert_outcomes(failed=3, passed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "launch 1 on 2 ranks: rank 1 raised AssertionError: the answer*",
            "*assert value == 42*",
            "launch 1 on 2 ranks: hung in body, * s: rank 1 at test_failing.py:* in hangs; rank 0 waits in *",
            "re-run:  pytest 'test_failing.py::test_hangs?ws2?' --data here",
            "debug:   pytest 'test_failing.py::test_hangs?ws2?' --data here --distbench-attach 1",
            "launch 1 on 2 ranks: rank ? raised SyntaxError: *",
        ]
    )


@pytest.mark.nightly
def test_gradients_that_are_not_averaged_fail_on_the_curve_of_the_loss(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    for name in (
        "training/logistic_regression.py",
        "training/test_time_to_accuracy.py",
        "conftest.py",
    ):
        shutil.copy(ROOT / "suites" / name, pytester.path)
    one_case = ["-k", "logistic_regression[accuracy-ws2]"]
    options = [*one_case, "--distbench-launches=2:2"]  # clocks are no subject
    assert run_inside(*options, "--distbench-update").ret == 0
    training = pytester.path / "logistic_regression.py"
    right = training.read_text()
    training.write_text(right.replace("net if rank.world_size == 1 else DistributedDataParallel(net)", "net"))
    broken = run_inside(*options)
    training.write_text(right)

    broken.stdout.fnmatch_lines(
        [
            "loss_curve: diverges at step 2, differs by up to * (seed *)*",
            "loss_curve: diverges at *; likely causes, in the first update: the gradient (its scale, reduction*",
        ]
    )
    assert broken.ret == 1
    assert run_inside(*options).ret == 0


def test_a_goal_records_what_its_seed_computed(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(
        """
        import pytest

        def body(rank):
            import torch

            goal = rank.goal("accuracy", target=0.5, every=2, max_steps=20, min_steps=12, curve_steps=3)
            for step in goal.steps(samples_per_step=1):
                goal.check(lambda: step / 20, loss=torch.tensor([1 / step]) if step % 2 else 1 / step)

        def test_goal(distbench):
            run = distbench.measure(body)
            assert run.values("steps_to_accuracy") == [10]
            assert run.values("final_accuracy") == [0.6]
            assert run.values("loss_curve") == [pytest.approx(1 / 3)]
            assert run.values("mean_loss") == [pytest.approx(sum(1 / step for step in range(1, 13)) / 12)]
        """
    )

    assert run_inside().ret == 0


def test_pytests_process_never_imports_torch_or_numpy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_slow=SLOW)
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure(config):
            print("HEAVY", sorted({"torch", "numpy", "pandas", "scipy"} & set(sys.modules)))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "--distbench-json=run.json", "-s")

    result.stdout.fnmatch_lines(["*HEAVY []*"])
