"""Options: how they are listed, and what a conftest with the same ones meets."""

from __future__ import annotations

import pytest
from support.projects import EXIT_USAGE, run


def test_a_conftest_with_the_same_option_is_a_usage_error_with_the_way_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('def pytest_addoption(parser):\n    parser.addoption("--gpu", action="store_true")\n')
    pytester.makepyfile("def test_step(distbench): pass")
    pytester.makeini("[pytest]\n")
    result = pytester.runpytest_inprocess()

    result.stderr.fnmatch_lines(
        ["*--gpu: a conftest.py of this project already defines it*distbench_short_options = false*--distbench-gpu*"]
    )
    assert result.ret == EXIT_USAGE


def test_such_a_conftest_keeps_its_option_where_nothing_of_ours_is_tested_or_the_ini_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest('def pytest_addoption(parser):\n    parser.addoption("--gpu", action="store_true")\n')
    pytester.makepyfile("def test_plain(request): assert request.config.option.gpu")
    assert run(pytester, "--gpu").ret == 0

    pytester.makeini("[pytest]\ndistbench_short_options = false\n")
    pytester.makepyfile(test_ours="def test_ours(distbench): assert distbench.world_size == 3")
    assert run(pytester, "--gpu", "--distbench-world-size=3").ret == 0


def test_help_groups_the_options(pytester: pytest.Pytester) -> None:
    run(pytester, "--help").stdout.fnmatch_lines(
        [
            "distributed performance and accuracy regressions:",
            "*--distbench-update*",
            "*--world-size=*",
            "*--gpu*",
            "*distbench_tolerance*",
        ]
    )
