"""The options that choose entries of a store."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.commands import choose_entries, folder_of, read_chosen
from pytest_distbench.errors import DistbenchError
from pytest_distbench.store.baselines import BaselineStore


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    choose_entries(parser)
    return parser.parse_args(arguments)


def names(folder: Path, *arguments: str) -> list[tuple[str, str]]:
    return [(f.platform, f.test) for f in read_chosen(options("--baselines", str(folder), *arguments))]


def test_entries_come_by_platform_and_several_parts_choose_what_any_names(folder: Path) -> None:
    BaselineStore(folder, "a").write("suites/test_b.py::test_b", KEY, entry(1.0))

    assert names(folder) == [("a", "suites/test_b.py::test_b"), (PLATFORM, TEST)]
    assert names(folder, "--platform", PLATFORM) == [(PLATFORM, TEST)]
    assert names(folder, "-k", "test_b") == [("a", "suites/test_b.py::test_b")]
    assert len(names(folder, "-k", "test_b", "-k", "test_a")) == 2


def test_a_hardware_class_without_baselines_is_an_error_that_names_those_there_are(folder: Path) -> None:
    with pytest.raises(DistbenchError, match=f"no baselines of the hardware class 'gpu' in .*; there are {PLATFORM}"):
        names(folder, "--platform", "gpu")


def test_without_a_store_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(DistbenchError, match="is not a folder: run where your baselines are, or give --baselines DIR"):
        folder_of(options("--baselines", str(tmp_path / "none")))
