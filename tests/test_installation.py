"""What is installed here, and what is the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_distbench
from pytest_distbench.installation import is_installed_here


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
