"""A baseline whose test is gone fails the run, and moves to the test's new name by a command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.projects import Project, run

from pytest_distbench.store.baselines import read_file

TEST = """
    import pytest

    STEP = {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}

    def body(rank):
        pass

    def test_load(distbench):
        distbench.run(body, params={"stand_in": STEP, "files": 4})

    def test_other(distbench):
        distbench.run(body, params={"stand_in": STEP, "other": 1})
"""
Change = Callable[[Path], None]


def edit(*changes: tuple[str, str], name: str = "test_it.py", to: str = "test_it.py") -> Change:
    """Replace texts of a test file, and move it."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / name).unlink()
        (folder / to).parent.mkdir(exist_ok=True)
        (folder / to).write_text(text)

    return change


LOAD = """def test_load(distbench):
    distbench.run(body, params={"stand_in": STEP, "files": 4})
"""
METHOD = """class TestAll:
    def test_load(self, distbench):
        distbench.run(body, params={"stand_in": STEP, "files": 4})
"""
WITH_ID = """@pytest.mark.parametrize("a", [0], ids=["cold"])
def test_load(distbench, a):
    distbench.run(body, params={"stand_in": STEP, "files": 4})
"""


def parametrized(name: str, *, key: str) -> Change:
    mark = f'@pytest.mark.parametrize("{name}", [1, 4])\n'
    return edit(
        ("def test_load(distbench", f"{mark}def test_load(distbench, {name}"), ('"files": 4', f'"{key}": {name}')
    )


CHANGES: dict[str, tuple[Change, str, str]] = {
    "gets a parameter": (
        parametrized("files", key="files"),
        "test_it.py::test_load[ws2]",
        "test_it.py::test_load[4-ws2]",
    ),
    "gets a parameter of another name": (
        parametrized("shards", key="shards"),
        "test_it.py::test_load[ws2]",
        "test_it.py::test_load[4-ws2]",
    ),
    "gets an id": (edit((LOAD, WITH_ID)), "test_it.py::test_load[ws2]", "test_it.py::test_load[cold-ws2]"),
    "other function": (edit(("test_load", "test_loading")), "test_it.py::test_load", "test_it.py::test_loading"),
    "other file": (edit(to="test_new.py"), "test_it.py::test_load", "test_new.py::test_load"),
    "other folder": (edit(to="suites/test_it.py"), "test_it.py::test_load", "suites/test_it.py::test_load"),
    "into a class": (edit((LOAD, METHOD)), "test_it.py::test_load", "test_it.py::TestAll::test_load"),
    "other file and function": (
        edit(("test_load", "test_a"), to="test_new.py"),
        "test_it.py::test_load",
        "test_new.py::test_a",
    ),
}


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    made = project(TEST)
    assert run(made, "--distbench-update", "--distbench-launches=5").ret == 0
    return made


def pattern(name: str) -> str:
    return re.sub("[][]", "?", name)


def names(project: pytest.Pytester) -> set[str]:
    files = [read_file(path) for path in (project.path / "baselines").rglob("*.json")]
    assert all(file.entry.test_id == file.key.partition(".")[0] for file in files)
    return {f"{file.test}[{file.key.removesuffix('.gloo.stand-in')}]" for file in files}


def move(project: pytest.Pytester, old: str, new: str) -> pytest.RunResult:
    return project.run(sys.executable, "-m", "pytest_distbench", "baseline", "move", old, new)


@pytest.mark.parametrize("name", CHANGES)
def test_a_missing_test_fails_until_its_baseline_is_renamed_and_then_a_slowdown_does(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, old, new = CHANGES[name]
    change(recorded.path)
    before = names(recorded)
    missing = run(recorded)

    assert missing.ret == 1
    command = "*distbench baseline move --baselines baselines *"
    missing.stdout.fnmatch_lines([f"  {pattern(old)}", command, "* prune *", "* cases: *, * baseline* WITHOUT A TEST*"])
    assert names(recorded) == before
    if "file" in name or "folder" in name:  # so is the other test of it
        assert move(recorded, "test_it.py::test_other", f"{new.partition('::')[0]}::test_other").ret == 0
    assert move(recorded, old, new).ret == 0
    assert run(recorded).ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    result = run(recorded)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["step +*% *(threshold +*%)*", f"FAILED *{pattern(new)}* - *"])


def test_what_cannot_be_read_of_a_test_that_does_not_run_fails_nobody(recorded: pytest.Pytester) -> None:
    (recorded.path / "test_more.py").write_text((recorded.path / "test_it.py").read_text())
    assert run(recorded, "test_more.py", "--distbench-update").ret == 0
    for path in (recorded.path / "baselines").rglob("test_more/**/*.json"):
        path.write_text("{")

    assert run(recorded, "test_it.py", "-k", "load").ret == 0


def test_the_one_new_name_is_offered(recorded: pytest.Pytester) -> None:
    edit(("test_load", "test_loading"))(recorded.path)

    run(recorded).stdout.fnmatch_lines(
        ["x 1 baseline without a test, *", "*move --baselines baselines test_it.py::test_load test_it.py::test_loading"]
    )
    assert recorded.runpytest_subprocess("-n2").ret == 1
    assert run(recorded, "--distbench-update=new").ret == 0  # it records, and nothing is lost
    assert "test_it.py::test_load[ws2]" in names(recorded)


GONE = edit((LOAD, LOAD.replace("test_load", "test_third")))


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        (GONE, ["test_it.py::test_third"]),
        (GONE, ["--world-size=4"]),
        (edit(), ["-k", "other"]),
        (edit(), ["-m", "slow"]),
        (edit(), ["test_it.py::test_other"]),
        (edit(), ["--deselect", "test_it.py::test_load"]),
        (edit(), ["--world-size=4"]),
        (edit((LOAD, '@pytest.mark.skip("today")\n' + LOAD)), []),
        (edit((LOAD, f"if True:\n{LOAD}".replace("\n", "\n    ").rstrip() + "\n")), []),
        (edit(("import pytest", "import pytest, nowhere")), []),
    ],
)
def test_what_a_run_does_not_choose_is_not_missing(
    recorded: pytest.Pytester, change: Change, arguments: list[str]
) -> None:
    change(recorded.path)
    before = names(recorded)
    result = run(recorded, *arguments)

    if "world-size" not in str(arguments) or change is not GONE:
        assert "without a test" not in result.stdout.str()
    assert names(recorded) == before


def test_a_store_that_another_root_shares_may_have_tests_of_its_own(recorded: pytest.Pytester) -> None:
    (recorded.path / "other").mkdir()
    (recorded.path / "other" / "test_its.py").write_text((recorded.path / "test_it.py").read_text())
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir=.", "--distbench-launcher=stand-in", "."]
    done = subprocess.run(
        [*command, "--world-size=2", "--distbench-baselines=../baselines"],
        cwd=recorded.path / "other",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "without a test" not in done.stdout


REPEAT = """
    def pytest_addoption(parser):
        parser.addoption("--count", type=int, default=1)

    def pytest_generate_tests(metafunc):
        if (count := metafunc.config.option.count) > 1:
            name = "__pytest_repeat_step_number"
            metafunc.fixturenames.append(name)
            metafunc.parametrize(name, range(count), ids=[f"{i + 1}-{count}" for i in range(count)])
"""


def test_repeats_of_a_test_are_compared_with_its_baseline(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.makeconftest(REPEAT)
    before = names(recorded)

    assert run(recorded, "--count=2").ret == 0
    assert run(recorded, "--count=2", "--distbench-update").ret == 0
    assert names(recorded) == before
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    assert run(recorded, "--count=2").ret == 1


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("test_it.py::test_load", "test_it.py::test_other", "has a baseline already"),
        ("test_it.py::test_none", "test_it.py::test_other", "no baseline of test_it.py::test_none"),
        ("test_it.py", "test_new.py", "'test_it.py' is no test"),
        ("test_it.py::test_load[ws2]", "test_it.py::test_new", "an id in brackets in both names"),
        ("test_it.py::test_load", "/test_new.py::test_new", "has no place"),
    ],
)
def test_a_move_that_cannot_be_says_why_and_moves_nothing(
    recorded: pytest.Pytester, old: str, new: str, text: str
) -> None:
    before = names(recorded)
    done = move(recorded, old, new)

    assert done.ret != 0
    assert re.search(text, done.stderr.str())
    assert names(recorded) == before
