"""What plugin runs inside this process leave of it to the tests that follow."""

from __future__ import annotations

import sys

from support.projects import Project, run


def test_what_a_project_imports_stays_for_the_tests_that_follow_and_its_own_modules_go(project: Project) -> None:
    sys.modules.pop("colorsys", None)
    run(project("import colorsys\n\ndef test_it():\n    assert colorsys.ONE_THIRD\n")).assert_outcomes(passed=1)

    assert "colorsys" in sys.modules
    assert "test_it" not in sys.modules
