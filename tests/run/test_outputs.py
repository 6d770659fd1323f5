"""What launches that passed have printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.records.launch import LaunchRecord, Outcome
from pytest_distbench.run.directory import Outputs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    launch = tmp_path / "launch1"
    (launch / "work").mkdir(parents=True)
    (launch / "work" / "data").symlink_to(tmp_path)
    for name in ("rank0.log", "rank1.log", "rank0.json"):
        (launch / name).write_text(f"{name}\n")
    return launch


def launch(folder: Path, outcome: Outcome = "passed") -> LaunchRecord:
    return LaunchRecord(index=2, outcome=outcome, wall_s=1.0, logs=str(folder))


def test_output_can_be_read_until_the_test_is_over(folder: Path, tmp_path: Path) -> None:
    outputs, record = Outputs(), launch(folder)
    outputs.take(record, "a/b")

    assert sorted(p.name for p in folder.iterdir()) == ["rank0.log", "rank1.log"]
    assert record.output(1) == "rank1.log\n"
    with pytest.raises(FileNotFoundError, match="no output of rank 7 of launch 3"):
        record.output(7)
    outputs.forget()
    assert not folder.exists()
    assert tmp_path.exists()
    with pytest.raises(FileNotFoundError, match="--distbench-out"):
        record.output()


def test_all_of_a_launch_that_failed_stays(folder: Path) -> None:
    outputs = Outputs()
    outputs.take(launch(folder, "failed"), "a")
    outputs.forget()

    assert (folder / "work").is_dir()


def test_output_is_kept_for_good_where_the_user_wants_it(folder: Path, tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "kept")
    outputs.take(launch(folder), f"suites/test_a.py/../test_b/{'x' * 300}", "reference")
    outputs.forget()

    found = [str(p.relative_to(tmp_path / "kept")) for p in (tmp_path / "kept").rglob("*.log")]
    assert len(found) == 2
    assert all(name.startswith("suites/test_a.py/%2E%2E/test_b/xxx") for name in found)
    assert all("/launch3-reference/rank" in name for name in found)
