"""The private folder of a run: who may enter it, when it goes, what later runs make of it, and what launches print."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_distbench.records.launch import LaunchRecord, Outcome
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.run.directory import KEPT, OLD_S, RunDirectory, is_of_an_ended_run


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


PROJECT = Path("/home/me/project/baselines")


def ended(*, keep: bool = True, project: Path = PROJECT) -> Path:
    """The folder of a run that has ended."""
    directory = RunDirectory(project)
    directory.failed = int(keep)
    directory.close()
    return directory.path


def test_only_this_user_may_enter_the_folders_of_a_run_and_of_its_launches() -> None:
    directory = RunDirectory(PROJECT)
    launches = [directory.next_launch() for _ in range(2)]

    assert [path.name for path in launches] == ["launch1", "launch2"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (directory.path, *launches)} == {0o700}


def test_a_folder_goes_unless_somebody_may_want_to_read_it() -> None:
    assert not ended(keep=False).exists()
    assert ended(keep=True).exists()


def test_the_folder_of_a_run_that_goes_on_is_never_removed() -> None:
    running = [RunDirectory(PROJECT) for _ in range(KEPT + 2)]

    assert all(directory.path.exists() for directory in running)
    assert not any(is_of_an_ended_run(directory.path) for directory in running)


def test_what_a_killed_run_left_of_its_secrets_and_sockets_goes_and_its_logs_stay() -> None:
    directory = RunDirectory(PROJECT)
    files = LaunchFiles(directory.next_launch())
    files.plan.write_text("the environment, secrets included")
    files.control.touch()
    files.log(0).write_text("what rank 0 printed")
    files.sockets.mkdir()
    directory.failed = 1
    directory.close()
    RunDirectory(PROJECT)

    assert list(files.directory.iterdir()) == [files.log(0)]


def test_a_failed_launch_keeps_its_runs_folder_and_removes_those_of_long_ago(
    project: Callable[[str], pytest.Pytester], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "keep the logs")
    made = project("def body(rank):\n    pass\n\ndef test_it(distbench):\n    distbench.run(body)\n")
    for _ in range(KEPT + 2):
        made.runpytest_inprocess().assert_outcomes(failed=1)

    assert len(list(tmp_path.glob("distbench-*/"))) == KEPT + 1  # the last one's, and those before it


def test_semaphores_of_ended_runs_are_unlinked_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setattr("pytest_distbench.run.directory._SEMAPHORES", shm)
    killed, running = ended(), RunDirectory(PROJECT)
    for name in (killed.name, running.path.name, "mp"):
        (shm / f"sem.{name}-x1").touch()
    RunDirectory(PROJECT)

    assert {path.name for path in shm.iterdir()} == {f"sem.{running.path.name}-x1", "sem.mp-x1"}
    running.close()
    assert {path.name for path in shm.iterdir()} == {"sem.mp-x1"}


def test_a_link_that_another_user_left_leads_nowhere(tmp_path: Path) -> None:
    """To a folder of this user with files of the right names in it, which everybody may make in /tmp."""
    (tmp_path / "in-use.lock").touch()
    (tmp_path / "distbench-linked").symlink_to(tmp_path)
    files = LaunchFiles(tmp_path / "launch1")
    files.sockets.mkdir(parents=True)
    files.plan.touch()
    RunDirectory(PROJECT)

    assert files.sockets.exists()
    assert files.plan.exists()


@pytest.mark.parametrize(("name", "is_one"), [("distbench-gone", True), ("somebody-elses", False)])
def test_a_folder_that_is_gone_was_one_if_it_has_the_name(tmp_path: Path, name: str, is_one: bool) -> None:
    assert is_of_an_ended_run(tmp_path / name) == is_one


def test_the_newest_folders_of_earlier_runs_stay(tmp_path: Path) -> None:
    earlier = []
    for second in range(KEPT + 2):
        earlier.append(ended())
        os.utime(earlier[-1], (second, second))
    now = RunDirectory(PROJECT)

    assert set(tmp_path.iterdir()) == {*earlier[-KEPT:], now.path}


def test_folders_of_other_projects_are_not_counted_and_go_when_they_are_old(tmp_path: Path) -> None:
    mine = ended()
    others = [ended(project=Path(f"/other/{i}")) for i in range(KEPT + 2)]
    old = time.time() - OLD_S - 60
    os.utime(others[0], (old, old))
    os.utime(mine, (old, old))
    now = RunDirectory(PROJECT)

    assert set(tmp_path.iterdir()) == {mine, *others[1:], now.path}


def test_a_folder_of_that_name_without_a_lock_is_somebody_elses(tmp_path: Path) -> None:
    foreign = [tmp_path / f"distbench-{i}" for i in range(KEPT + 2)]
    for path in foreign:
        path.mkdir()
    RunDirectory(PROJECT)

    assert all(path.exists() for path in foreign)


def test_runs_that_start_at_the_same_moment_do_not_trip_over_folders_that_go(tmp_path: Path) -> None:
    for _ in range(30):
        ended()
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda _: RunDirectory(PROJECT), range(40)))

    assert len({directory.path for directory in started}) == 40
    assert all(directory.data.is_dir() for directory in started)


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
    outputs, record = RunDirectory(PROJECT), launch(folder)
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
    outputs = RunDirectory(PROJECT)
    outputs.take(launch(folder, "failed"), "a")
    outputs.forget()

    assert (folder / "work").is_dir()


def test_output_is_kept_for_good_where_the_user_wants_it(folder: Path, tmp_path: Path) -> None:
    outputs = RunDirectory(PROJECT, tmp_path / "kept")
    outputs.take(launch(folder), f"suites/test_a.py/../test_b/{'x' * 300}", "reference")
    outputs.forget()

    found = [str(p.relative_to(tmp_path / "kept")) for p in (tmp_path / "kept").rglob("*.log")]
    assert len(found) == 2
    assert all(name.startswith("suites/test_a.py/%2E%2E/test_b/xxx") for name in found)
    assert all("/launch3-reference/rank" in name for name in found)
