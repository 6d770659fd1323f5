"""The distbench command: what it prints, and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.baselines import BaselineStore
from pytest_distbench.cli import main
from pytest_distbench.records import BaselineEntry, BaselineMetric


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    metric = BaselineMetric(better="lower", unit="s", launches=[0.001, 0.002, 0.003])
    entry = BaselineEntry(
        workload="12345678",
        world_size=2,
        backend="gloo",
        launcher="warm",
        software={"torch": "2.13.0"},
        metrics={"step": metric},
    )
    BaselineStore(tmp_path / "b", "cpu-x-2c").write("suites/test_a.py::test_a", {"ws2.gloo.warm": entry})
    return tmp_path / "b"


def test_list_names_every_entry(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "list", "--baselines", str(folder)]) == 0

    assert "cpu-x-2c  suites/test_a.py::test_a[ws2.gloo.warm]" in capsys.readouterr().out


def test_show_prints_median_and_range(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "show", "test_a", "--baselines", str(folder)]) == 0

    assert "step      2 ms  1 ms  3 ms         3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baseline", "list", "--baselines", "nowhere"], "nowhere is not a folder"),
        (["baseline", "show", "nothing"], "no baseline whose test or case contains 'nothing'"),
    ],
)
def test_errors_name_what_was_found(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    extra = [] if "--baselines" in arguments else ["--baselines", str(folder)]

    assert main([*arguments, *extra]) == 2
    assert message in capsys.readouterr().err
