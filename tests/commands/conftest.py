"""A store, and the command run on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import KEY, PLATFORM, TEST, Run, entry

from pytest_distbench.commands.cli import main
from pytest_distbench.store.baselines import BaselineStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BaselineStore(tmp_path / "b", PLATFORM).write(TEST, KEY, entry(0.001, 0.002, 0.003))
    return tmp_path / "b"


@pytest.fixture
def store(folder: Path) -> BaselineStore:
    return BaselineStore(folder, PLATFORM)


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``distbench baseline`` on the store: exit code and everything printed."""

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["baseline", *arguments, "--baselines", str(folder)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call
