"""What files of tests cost, what became costly, and what runs inside this process leave to the tests that follow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import durations
import pytest
from durations import Cost
from support.costs import PROPERTY, cpu_s
from support.projects import Project, run

COMPUTES = "import time\nwhile time.process_time() < 0.3: pass"


def report(path: Path, **seconds: float) -> str:
    cases = "".join(
        f'<testcase file="tests/test_{file}.py" time="1.0"><properties>'
        f'<property name="{PROPERTY}" value="{used}"/></properties></testcase>'
        for file, used in seconds.items()
    )
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return str(path)


def test_what_children_and_those_that_still_run_compute_is_counted() -> None:
    before = cpu_s()
    subprocess.run([sys.executable, "-c", COMPUTES], check=True)
    between = cpu_s()
    command = [sys.executable, "-c", f"{COMPUTES}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        live = cpu_s()
        running.kill()

    assert between - before >= 0.3
    assert live - between >= 0.3 - 2 / 100  # /proc counts ticks


def test_a_file_whose_share_has_more_than_doubled_is_an_error_however_slow_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(durations, "RECORDED", tmp_path / "recorded.csv")
    others = {f"other{number}": 5.0 for number in range(18)}

    def measured(slowness: float = 1.0, **seconds: float) -> str:
        taken = {file: slowness * used for file, used in {**others, **seconds}.items()}
        return report(tmp_path / "now.xml", **taken)

    assert durations.main(["--record", measured(slow=10)]) == 0
    assert durations.main([measured(3.0, slow=10)]) == 0
    assert durations.main([measured(slow=15, new=0.5)]) == 0
    assert durations.main([measured(slow=10, lint=40)]) == 0
    assert durations.main([measured(slow=40, new=5)]) == 1
    assert capsys.readouterr().err.splitlines()[:2] == [
        "tests/test_slow.py: 40 CPU seconds, 30.8% of all; 10.0% when recorded",
        "tests/test_new.py: 5 CPU seconds, 3.8% of all; 0.0% when recorded",
    ]


def test_a_report_is_summed_by_file(tmp_path: Path) -> None:
    reports = [report(tmp_path / "a.xml", one=1.5, two=4), report(tmp_path / "b.xml", one=2)]

    assert durations.read_reports(reports) == {
        "tests/test_two.py": Cost(1, 4.0, 1.0),
        "tests/test_one.py": Cost(2, 3.5, 2.0),
    }


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no test in"):
        durations.main([report(tmp_path / "empty.xml")])


def test_what_is_recorded_are_files_that_are_there() -> None:
    assert [file for file in durations.read_recorded() if not (durations.ROOT / file).is_file()] == []


def test_what_a_project_imports_stays_for_the_tests_that_follow_and_its_own_modules_go(project: Project) -> None:
    sys.modules.pop("colorsys", None)
    run(project("import colorsys\n\ndef test_it():\n    assert colorsys.ONE_THIRD\n")).assert_outcomes(passed=1)

    assert "colorsys" in sys.modules
    assert "test_it" not in sys.modules
