"""What a launch may not leave behind."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.launch.site.guardian import remove_traces
from pytest_distbench.records.launch_files import LaunchFiles


def test_sockets_and_the_plan_go_and_what_is_for_reading_stays(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    files.sockets.mkdir()
    for path in (files.plan, files.control, files.sockets / "listener", files.log(0), files.report(0)):
        path.touch()
    remove_traces(files)

    assert sorted(tmp_path.iterdir()) == sorted([files.log(0), files.report(0)])


def test_where_there_is_nothing_nothing_is_removed(tmp_path: Path) -> None:
    remove_traces(LaunchFiles(tmp_path))

    assert list(tmp_path.iterdir()) == []
