"""Seconds of files of tests, and what runs inside this process leave of it to the tests that follow."""

from __future__ import annotations

import sys
from pathlib import Path

import durations
import pytest
from support.projects import Project, run


def report(path: Path, **seconds: float) -> str:
    cases = "".join(f'<testcase file="tests/test_{file}.py" time="{taken}"/>' for file, taken in seconds.items())
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return str(path)


def test_a_file_that_takes_more_than_its_share_in_all_reports_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {f"quick{number}": 50.0 for number in range(20)}
    reports = [report(tmp_path / "a.xml", slow=60, **quick), report(tmp_path / "b.xml", slow=80)]

    assert durations.main(reports[:1]) == 0
    assert durations.main(reports) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "tests/test_slow.py: 140 s, 12.3% of all, and may take 6%"


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no test in"):
        durations.main([report(tmp_path / "empty.xml")])


def test_exceptions_are_files_that_are_there() -> None:
    assert [file for file in durations.SHARES if not (durations.ROOT / file).is_file()] == []


def test_what_a_project_imports_stays_for_the_tests_that_follow_and_its_own_modules_go(project: Project) -> None:
    sys.modules.pop("colorsys", None)
    run(project("import colorsys\n\ndef test_it():\n    assert colorsys.ONE_THIRD\n")).assert_outcomes(passed=1)

    assert "colorsys" in sys.modules
    assert "test_it" not in sys.modules
