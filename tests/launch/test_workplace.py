"""The folder that a launch works in, and what its ranks print there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch import workplace
from pytest_distbench.launch.workplace import Leftovers, error_tail, set_up, tail, watched_folder
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks
from pytest_distbench.records.record import replace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def test_a_tail_is_the_last_lines_and_the_first_traceback(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\nc\n")

    assert tail(tmp_path / "log", 2) == "b\nc"
    assert tail(tmp_path / "none") == ""

    noise = (
        "[W1125 14:57:39.374144666 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    )
    other = noise.replace("hostname of the client socket", "client socket")
    (tmp_path / "log").write_text(f"{noise}\na\n{noise}\n{other}\n")

    assert tail(tmp_path / "log", 2) == f"a\n{other}"

    (tmp_path / "log").write_text("start\nTraceback (most recent call last):\n  File x\nValueError: bad\n")

    assert error_tail(tmp_path / "log") == tail(tmp_path / "log")

    deep = [f'[rank1]:   File "x.py", line {n}' for n in range(40)]
    traceback = ["[rank1]: Traceback (most recent call last):", *deep, "[rank1]: ValueError: bad", "[rank1]: not of it"]
    summary = [f"summary {n}" for n in range(100)]
    (tmp_path / "log").write_text("\n".join(["start", *traceback, *summary]))

    shown = error_tail(tmp_path / "log").splitlines()
    assert len(shown) <= workplace.TAIL_LINES
    assert shown[0] == "[rank1]: Traceback (most recent call last):"
    assert shown[shown.index("...") - 1] == "[rank1]: ValueError: bad"
    assert shown[-1] == "summary 99"


@given(st.binary(max_size=500), st.integers(1, 40))
def test_a_tail_is_at_most_that_long(folder: Path, data: bytes, lines: int) -> None:
    (folder / "log").write_bytes(data)

    assert len(tail(folder / "log", lines).splitlines()) <= lines


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_a_followed_log_loses_nothing_however_it_is_cut(folder: Path, chunks: list[bytes]) -> None:
    plan = make_plan(folder, world_size=1)
    log = plan.files.log(0)
    log.write_bytes(b"")
    seen: list[str] = []
    follower = workplace.LogFollower(plan, lambda rank, line: seen.append(line))
    for chunk in chunks:
        with log.open("ab") as file:
            file.write(chunk)
        follower.poll()
    follower.finish()
    whole = b"".join(chunks).decode(errors="replace")

    assert [line for line in seen if line] == [line for part in whole.split("\n") for line in part.split("\r") if line]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("script")
    (folder / "data" / "train.bin").write_text("tokens")
    return folder


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    directory = tmp_path / "launch"
    directory.mkdir()
    return make_plan(directory, work=Ranks(body=BodyReference(file="train.py")))


def at(plan: LaunchPlan, folder: Path | str, **place: object) -> LaunchPlan:
    return replace(plan, folder=str(folder), **place)  # type: ignore[arg-type]


def test_a_mirrored_folder_has_links_to_the_scripts_folder_which_is_watched(plan: LaunchPlan, project: Path) -> None:
    ready = set_up(at(plan, project, is_mirrored=True))
    work = Path(ready.working_dir)

    assert work == plan.files.work
    assert (work / "data" / "train.bin").read_text() == "tokens"
    (work / "snapshot.pt").touch()
    assert not (project / "snapshot.pt").exists()

    function = at(replace(plan, work=Ranks(body=BodyReference(file="train.py", function="body"))), project)

    assert watched_folder(set_up(function)) is None
    assert watched_folder(ready) == project
    assert watched_folder(replace(plan, working_dir=str(project))) == project
    assert watched_folder(replace(plan, working_dir=str(plan.files.work))) is None


def test_placeholders_have_this_launch_s_values_and_a_path_for_modules_goes_before_pytest_s(plan: LaunchPlan) -> None:
    arguments = ["--out={launch_dir}/x", "--data", "{data_dir}", "{seed}/{world_size}", '{"a": 1}']
    ready = set_up(
        replace(
            plan,
            work=Ranks(body=BodyReference(file="train.py", arguments=arguments), seeds=[7]),
            data_dir="/data",
            variables={"KEPT": "{seed}"},
            folder="{launch_dir}/inner",
            own_variables={"OUT": "{launch_dir}", "KEPT_TOO": "{nothing}"},
        )
    )

    assert ready.expect(Ranks).body.arguments == [f"--out={plan.files.work}/x", "--data", "/data", "7/2", '{"a": 1}']
    assert ready.variables == {"KEPT": "{seed}", "OUT": str(plan.files.work), "KEPT_TOO": "{nothing}"}
    assert ready.working_dir == f"{plan.files.work}/inner"
    assert Path(ready.working_dir).is_dir()

    ready = set_up(at(replace(plan, python_path=["/a"]), "/", own_variables={"PYTHONPATH": "{launch_dir}:/b"}))

    assert ready.python_path == [str(plan.files.work), "/b", "/a"]


def test_what_is_new_or_changed_in_a_folder_is_named(project: Path) -> None:
    leftovers = Leftovers(project)
    assert leftovers.remark() == ""

    (project / "snapshot.pt").touch()
    (project / "__pycache__").mkdir()
    (project / "__pycache__" / "train.pyc").touch()
    os.utime(project / "data" / "train.bin", (1, 1))
    assert leftovers.remark().startswith(
        f"left data/train.bin, snapshot.pt in {project}, where later launches may read it"
    )
    for i in range(6):
        (project / f"a{i}").touch()
    assert "left a0, a1, a2, a3, a4 and 3 more in" in leftovers.remark()


def test_that_a_folder_has_more_files_than_can_be_looked_through_is_said(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_distbench.launch.workplace._MOST_FILES", 1)
    leftovers = Leftovers(project)
    (project / "snapshot.pt").touch()

    assert leftovers.remark().startswith(f"{project} has more than 1 files, so files that a script leaves there")
    assert Leftovers(project / "nowhere").remark() == ""


def test_that_a_folder_is_deeper_than_can_be_looked_through_is_said(project: Path) -> None:
    deep = project.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    assert Leftovers(project).remark() == ""

    (deep / "i").mkdir()
    leftovers = Leftovers(project)
    (deep / "i" / "snapshot.pt").touch()
    assert leftovers.remark().startswith(f"{project} has folders more than 8 deep, so files that a script leaves there")
    (deep / "snapshot.pt").touch()
    assert leftovers.remark().startswith("left a/b/c/d/e/f/g/h/snapshot.pt in")


def test_a_virtual_environment_next_to_a_script_is_not_searched(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_distbench.launch.workplace._MOST_FILES", 2)
    for name in ("env/pyvenv.cfg", "env/lib/a.py", "env/lib/b.py", ".tox/py/a.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    leftovers = Leftovers(project)
    os.utime(project / "train.py", (1, 1))

    assert leftovers.remark().startswith("left train.py in")


@pytest.mark.parametrize("folder", ["{data_dir}/nowhere", "{launch_dir}/../nowhere"])
def test_a_folder_outside_of_the_launch_s_own_is_not_made(folder: str, plan: LaunchPlan) -> None:
    with pytest.raises(LauncherError, match="cwd=: there is no folder"):
        set_up(at(plan, folder))
