"""What plugin runs inside this process leave of it to the tests that follow."""

from __future__ import annotations

import importlib
import sys

from support.projects import Project, run


def test_a_project_that_imports_numpy_leaves_it_to_the_tests_that_follow(project: Project) -> None:
    run(project("import numpy\n\ndef test_it():\n    assert numpy.ones(1).sum() == 1\n")).assert_outcomes(passed=1)

    assert importlib.import_module("numpy") is sys.modules["numpy"]
