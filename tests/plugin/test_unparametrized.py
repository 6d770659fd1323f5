"""Methods of unittest.TestCase: at which size they run, and that what is stored for one size is not another's."""

from __future__ import annotations

from support.projects import EXIT_USAGE, Project, run, stored

CLASS = """
    import unittest

    import pytest

    P = {"stand_in": {"count!exact": 7}}

    def body(rank):
        pass

    class TestIt(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def _distbench(self, distbench):
            self.distbench = distbench

        def test_it(self):
            self.assertEqual(self.distbench.run(body, params=P).launches[0].outcome, "passed")

        @pytest.mark.world_size(2, 3)
        def test_sizes(self):
            self.distbench.run(body, params=P)

        @pytest.mark.world_size(8)
        def test_eight(self):
            self.distbench.run(body, params=P)
"""

TOLD = ("-W", "default")
"""Warnings are errors around these runs."""


def test_each_size_has_an_entry_of_its_own(project: Project) -> None:
    made = project(CLASS)
    for size in ("2", "4"):
        run(made, *TOLD, "--distbench-update", "--world-size", size).assert_outcomes(passed=2, skipped=1)
    result = run(made, *TOLD, "--world-size", "4", "-rs")

    assert [(path.parent.name, path.name) for path in stored(made)] == [
        ("TestIt.test_it", "ws2.gloo.stand-in.json"),
        ("TestIt.test_it", "ws4.gloo.stand-in.json"),
        ("TestIt.test_sizes", "ws2.gloo.stand-in.json"),
        ("TestIt.test_sizes", "ws3.gloo.stand-in.json"),
    ]
    result.stdout.fnmatch_lines(["2 metrics of 2 cases in 2 launches: 2 within limits", "*needs 8 ranks, 4 given"])


def test_what_it_does_not_run_at_is_said(project: Project) -> None:
    result = run(
        project(CLASS), *TOLD, "--world-size", "2,4", "--distbench-backend", "gloo,mpi", "-k", "not sizes and not eight"
    )

    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*of unittest.TestCase: it runs on 4 ranks with gloo, and not on 2 ranks, not with mpi. A function*"]
    )


def test_its_markers_are_checked(project: Project) -> None:
    result = run(project(CLASS.replace("world_size(8)", "world_size(mx=8)")))

    assert result.ret == EXIT_USAGE
    result.stderr.fnmatch_lines(["*TestIt::test_eight (test_it.py:22): @pytest.mark.world_size: unknown keyword mx*"])


def test_a_class_whose_world_size_is_none_is_the_error_of_its_tests_alone(project: Project) -> None:
    unfit = "        world_size = 'two'\n\n        @pytest.fixture(auto"
    result = run(project(CLASS.replace("        @pytest.fixture(auto", unfit)), *TOLD)

    result.assert_outcomes(errors=1, passed=1, skipped=1)
    result.stdout.fnmatch_lines(["TestIt.world_size='two' (*/test_it.py); wanted a number of ranks*"])


def test_a_test_that_asks_for_the_fixture_as_it_runs_has_an_entry_per_size_too(project: Project) -> None:
    made = project("""
        import pytest

        def body(rank):
            pass

        @pytest.mark.parametrize("x", ["a"])
        def test_it(request, x):
            request.getfixturevalue("distbench").run(body, params={"stand_in": {"count!exact": 7}})
    """)
    for size in ("2", "4"):
        run(made, "--distbench-update", "--world-size", size).assert_outcomes(passed=1)
    pruned = run(made, "--world-size", "4", "--distbench-prune")

    assert pruned.ret == 0
    assert [path.name for path in stored(made)] == ["a-ws2.gloo.stand-in.json", "a-ws4.gloo.stand-in.json"]
