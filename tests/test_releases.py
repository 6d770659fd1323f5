"""What is installed: the releases of torch and Python that ranks run under, and this package's version."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from versions import PARTS

import pytest_distbench
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.releases import (
    NEWEST_TORCH,
    OLDEST_PYTHON,
    OLDEST_TORCH,
    TESTED,
    check_torch,
    is_installed_here,
    nearest,
    release_of,
    text,
    untested,
)


def test_what_pip_installed_and_python_itself_is_installed_and_a_users_file_is_not(tmp_path: Path) -> None:
    assert is_installed_here(pytest.__file__)
    assert is_installed_here(os.__file__)
    assert not is_installed_here(str(tmp_path / "module.py"))


def test_the_package_offers_its_version_and_imports_nothing_before_it_is_asked() -> None:
    code = """
import sys, pytest_distbench
before = [name for name in sys.modules if name.startswith("pytest_distbench.")]
print(before, pytest_distbench.__version__[0].isdecimal())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["[]", "True"]


def test_what_the_package_does_not_offer_is_an_attribute_error() -> None:
    assert not hasattr(pytest_distbench, "nothing_of_this_name")


ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("version", "release"),
    [("2.14.1+cu130", (2, 14)), ("2.5.0a0+872d972e41.nv24.8", (2, 5)), ("3.0", (3, 0)), ("not installed", (0, 0))],
)
def test_a_version_has_a_release(version: str, release: tuple[int, int]) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("version", ["2.4.1", "1.13.1+cpu", "not installed"])
def test_a_torch_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^for x: torch {re.escape(version)}; ranks need 2\.\d+ or later"):
        check_torch(version, "for x: ")


@pytest.mark.parametrize("release", TESTED)
def test_a_tested_release_is_accepted_and_nearest_to_itself(release: tuple[int, int]) -> None:
    check_torch(f"{text(release)}.0")

    assert nearest(release) == release
    assert untested(f"{text(release)}.0") == ""


def test_every_release_between_the_oldest_and_the_newest_is_tested() -> None:
    for before, after in itertools.pairwise(sorted(TESTED)):
        assert after in ((before[0], before[1] + 1), (before[0] + 1, 0))


def test_a_release_newer_than_any_tested_is_reported_with_the_nearest() -> None:
    assert untested("9.1.0") == f"torch 9.1 is newer than any we have tested; the nearest is {text(NEWEST_TORCH)}"


def test_the_project_asks_for_the_oldest_release_and_names_the_tested_pythons() -> None:
    pythons = {python for tested in TESTED.values() for python in tested}

    assert f"torch>={text(OLDEST_TORCH)}" in PROJECT["dependencies"]
    assert PROJECT["requires-python"] == f">={text(OLDEST_PYTHON)}"
    assert set(re.findall(r":: (3\.\d+)", " ".join(PROJECT["classifiers"]))) == pythons


def test_the_table_of_the_documents_has_a_whole_row_for_every_tested_release_and_python() -> None:
    page = (ROOT / "docs" / "dev" / "versions.md").read_text()
    rows = re.findall(r"^\| (\d+\.\d+)\S* \| (\d+\.\d+)\S* \| (.*) \|$", page, re.MULTILINE)

    assert {(release_of(torch), python) for torch, python, _ in rows} == {
        (release, python) for release, tested in TESTED.items() for python in tested
    }
    for torch, _, cells in rows:
        counts = [re.fullmatch(r"(\d+) of (\d+)", cell) for cell in cells.split(" | ")]
        assert len(counts) == len(PARTS), torch
        assert all(count and count[1] == count[2] != "0" for count in counts), torch


def test_the_fast_engine_was_seen_to_work_under_every_python_and_its_row_is_whole() -> None:
    page = (ROOT / "docs" / "dev" / "versions.md").read_text()
    rows = re.findall(r"^\| torch (\S+), Python (\d+\.\d+)\S* \| (.*) \|$", page, re.MULTILINE)

    assert {python for _, python, _ in rows} == {python for tested in TESTED.values() for python in tested}
    for torch, _, cells in rows:
        assert release_of(torch) in TESTED
        tests, plans, exhibit = cells.split(" | ")
        counts = [re.fullmatch(r"(\d+) of (\d+)", cell) for cell in (tests, plans)]
        assert all(count and count[1] == count[2] != "0" for count in counts), torch
        assert exhibit == "named", torch
