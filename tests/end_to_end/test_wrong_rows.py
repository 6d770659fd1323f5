"""Rows that are added from outside and are wrong: the test fails with the row's name, and pytest itself never does."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("own_rows")

AROUND = """
import contextlib
from pytest_distbench.run.kinds import AROUND

class Wrong:
    def __init__(self, setup):
        pass

    @contextlib.contextmanager
    def during(self, plan, hosting):
        yield lambda record: record

    def conditions(self, request):
        return {}

    def close(self):
        pass
"""

LAUNCHER = """
import subprocess
from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
from pytest_distbench.testing import StandInLauncher

class Wrong(StandInLauncher):
    pass

LAUNCHERS["wrong"] = LauncherKind(help="", make=lambda setup: Wrong(setup.session), hosts="none")
"""

NAP = """
import pytest
from pytest_distbench.records.plan import Work
from pytest_distbench.run.kinds import LAUNCH_KINDS, LaunchKind

class Nap(Work, frozen=True, kw_only=True):
    pass

LAUNCH_KINDS[Nap] = LaunchKind(run=lambda plan, side: None, launcher=lambda work, launcher: "nap")

@pytest.fixture
def nap(distbench):
    return lambda: distbench.run_work("nap", Nap(), identity={})
"""

STEP = """
def body(rank):
    pass

def test_step(distbench):
    distbench.run(body, params={"stand_in": {"step": 0.02}})
"""


@pytest.mark.parametrize(
    ("conftest", "text"),
    [
        (
            AROUND + 'Wrong.conditions = lambda self, request: {"cooling": 3}; AROUND["fans"] = Wrong',
            "AROUND['fans']: conditions gave {'cooling': 3}; wanted texts by name, as {'cooling': 'low'}",
        ),
        (
            AROUND.replace("lambda record: record", "lambda record: None") + 'AROUND["fans"] = Wrong',
            "AROUND['fans']: what it yields gave None; wanted a LaunchRecord",
        ),
        (
            AROUND + 'Wrong.close = lambda self: 1 / 0; AROUND["fans"] = Wrong',
            "ERROR: AROUND['fans']: ZeroDivisionError: division by zero (*conftest.py:*)",
        ),
        (
            LAUNCHER + "Wrong.__init__ = lambda self, session: 1 / 0",
            "LAUNCHERS['wrong']: ZeroDivisionError: division by zero (*conftest.py:*)",
        ),
        (
            LAUNCHER + 'Wrong.open = lambda self, plan: subprocess.Popen(["no-relay"])',
            "cannot start ranks: *: no-relay (*conftest.py:*): a launch under --distbench-launcher=wrong needs it",
        ),
    ],
)
def test_a_wrong_row_is_named(pytester: pytest.Pytester, conftest: str, text: str) -> None:
    pytester.makeconftest(conftest)
    pytester.makepyfile(test_it=STEP)
    launcher = "wrong" if "LAUNCHERS" in conftest else "stand-in"
    result = pytester.runpytest_inprocess("-p", "pytest_distbench.testing", f"--distbench-launcher={launcher}")

    is_usage_error = text.startswith("ERROR: ")
    (result.stderr if is_usage_error else result.stdout).fnmatch_lines([text.replace("[", "[[]")])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert result.ret == (pytest.ExitCode.USAGE_ERROR if is_usage_error else pytest.ExitCode.TESTS_FAILED)


def test_a_kind_of_launch_whose_run_returns_no_record_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(NAP)
    pytester.makepyfile(test_it="def test_nap(nap):\n    nap()\n")
    result = pytester.runpytest_inprocess()

    result.stdout.fnmatch_lines(["LAUNCH_KINDS[[]Nap]: run gave None; wanted a LaunchRecord"])
    assert result.ret == 1
