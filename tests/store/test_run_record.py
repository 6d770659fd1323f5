"""The records of runs: the file that ``--distbench-json`` writes, and how metrics went over a folder of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import result, run
from support.stores import result as measured

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.record import replace
from pytest_distbench.store.run_record import read_history, read_run_record, write_run_record


def write(folder: Path, day: int, *steps: float) -> Path:
    """A record of that day whose launches measured these."""
    launches = measured(*steps).launches
    made = run(result(launches=launches), started=f"2026-01-{day:02}T00:00:00+00:00", commit=f"c{day}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{day}.json"
    write_run_record(path, made)
    return path


def values(folder: Path, last: int = 100) -> dict[str, list[float]]:
    return {trend.metric: [point.value for point in trend.points] for trend in read_history(folder, last=last).trends}


def test_a_metric_has_the_median_of_each_run_by_their_start(tmp_path: Path) -> None:
    write(tmp_path, 2, 2.0)
    write(tmp_path / "below", 1, 1.0, 1.5, 1.25)
    history = read_history(tmp_path, last=100)
    [trend] = history.trends

    assert [(point.at[:10], point.commit, point.value) for point in trend.points] == [
        ("2026-01-01", "c1", 1.25), ("2026-01-02", "c2", 2.0),
    ]  # fmt: skip
    assert (trend.title, trend.nodeid, trend.unit) == ("test_a[ws2]", "suites/test_a.py::test_a[ws2]", "s")
    assert (history.records, history.first[:10], history.last[:10]) == (2, "2026-01-01", "2026-01-02")


def test_what_is_no_run_record_is_told_and_the_others_count(tmp_path: Path) -> None:
    write(tmp_path, 1, 1.0)
    write(tmp_path / ".hidden", 2, 2.0)
    truncated = write(tmp_path, 3, 3.0)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    (tmp_path / "later.json").write_text('{"schema": 99}')
    history = read_history(tmp_path, last=100)

    assert values(tmp_path) == {"step": [1.0]}
    assert [str(tmp_path / name) in problem for name, problem in zip(["3", "later"], history.problems, strict=True)]
    assert "schema" in history.problems[1]


def test_a_test_is_slow_that_nothing_but_runs_with_the_slow_ones_measured(tmp_path: Path) -> None:
    path = write(tmp_path, 3, 1.0)
    write_run_record(path, replace(read_run_record(path), settings={"full": "true"}))
    assert [trend.is_slow for trend in read_history(tmp_path, last=9).trends] == [True]
    write(tmp_path, 2, 1.0)
    assert [trend.is_slow for trend in read_history(tmp_path, last=9).trends] == [False]


STORED = Path(__file__).with_name("run_record.json")
"""A regression, an expected one beside another revision, a failed launch."""


def test_a_stored_record_that_is_written_again_is_the_same(tmp_path: Path) -> None:
    write_run_record(tmp_path / "run.json", read_run_record(STORED))

    assert (tmp_path / "run.json").read_bytes() == STORED.read_bytes()


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DistbenchError, match="is not a folder: give one that holds run records"):
        read_history(tmp_path / "nowhere", last=1)


def test_only_the_last_runs_count_where_that_is_asked_for(tmp_path: Path) -> None:
    for day in (3, 1, 2):
        write(tmp_path, day, float(day))

    assert values(tmp_path, last=2) == {"step": [2.0, 3.0]}
