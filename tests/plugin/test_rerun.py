"""The commands that are printed: to run a test again, and to record what has no baseline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.plugin.rerun import record_command, rerun_command


def config(*arguments: str) -> Any:
    invocation = SimpleNamespace(args=arguments, dir=Path("/p"))
    return SimpleNamespace(rootpath=Path("/p"), invocation_params=invocation, args=["suites"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--distbench-update", "failed"], []),
        (["--distbench-update"], []),
        (["--distbench-update=all"], []),
        (["--distbench-update", "--gpu"], ["--gpu"]),
        (["--distbench-prune", "--distbench-json", "run.json"], []),
        (["--distbench-attach=1", "--distbench-strict"], ["--distbench-strict"]),
        (["--world-size", "4", "-k", "x", "--mine", "a"], ["--world-size", "4", "--mine", "a"]),
        (["-p", "no:sugar", "-p", "mine"], ["-p", "mine"]),
        (["--reruns", "2", "--html=r.html", "--json-report", "--alluredir", "a", "--cov", "--mine=1"], ["--mine=1"]),
        (["--mine=1", "--", "suites", "-odd.py"], ["--mine=1"]),
    ],
)
def test_a_rerun_keeps_what_decides_how_a_test_runs(given: list[str], kept: list[str]) -> None:
    item: Any = SimpleNamespace(path=Path("/p/suites/test_a.py"), nodeid="suites/test_a.py::test_b[ws2]")
    command = rerun_command(config("suites", *given), item)

    assert command == " ".join(["pytest", "'suites/test_a.py::test_b[ws2]'", *kept])


def test_a_rerun_names_the_file_wherever_it_lies_and_whatever_pytest_calls_it() -> None:
    item: Any = SimpleNamespace(path=Path("/q/tests/test_a.py"), nodeid="tests/test_a.py::test_b")

    assert rerun_command(config(), item) == "pytest ../q/tests/test_a.py::test_b"


def test_the_command_that_records_has_one_update_and_its_own_number_of_launches() -> None:
    command = record_command(config("suites", "--distbench-update", "failed", "--distbench-launches", "2", "--gpu"))

    assert command == "pytest suites --gpu --distbench-update=new"


def test_what_is_added_stands_before_the_names_behind_two_dashes() -> None:
    assert record_command(config("--gpu", "--", "-odd.py")) == "pytest --gpu --distbench-update=new -- -odd.py"
