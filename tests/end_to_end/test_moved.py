"""Tests that get a parameter, another name or another place are compared with what is stored of them."""

from __future__ import annotations

import re
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


CHANGES: dict[str, tuple[Change, str]] = {
    "gets a parameter": (parametrized("files", key="files"), "test_it.py::test_load[4-ws2]"),
    "gets a parameter of another name": (parametrized("shards", key="shards"), "test_it.py::test_load[4-ws2]"),
    "other key of a parameter": (edit(('"files": 4', '"shards": 4')), "test_it.py::test_load[ws2]"),
    "gets an id": (edit((LOAD, WITH_ID)), "test_it.py::test_load[cold-ws2]"),
    "other function": (edit(("test_load", "test_loading")), "test_it.py::test_loading[ws2]"),
    "other file": (edit(to="test_new.py"), "test_new.py::test_load[ws2]"),
    "other folder": (edit(to="suites/test_it.py"), "suites/test_it.py::test_load[ws2]"),
    "into a class": (edit((LOAD, METHOD)), "test_it.py::TestAll::test_load[ws2]"),
    "other file and function": (edit(("test_load", "test_a"), to="test_new.py"), "test_new.py::test_a[ws2]"),
    "other folder and a parameter": (
        lambda folder: (parametrized("files", key="files")(folder), edit(to="suites/test_it.py")(folder))[0],
        "suites/test_it.py::test_load[4-ws2]",
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


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("selected", [False, True])
def test_the_commit_that_moves_a_test_and_makes_it_slower_is_red(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, selected: bool
) -> None:
    change, now = CHANGES[name]
    change(recorded.path)
    before = names(recorded)

    unchanged = run(recorded, *([now] if selected else []))
    assert unchanged.ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    result = run(recorded, *([now] if selected else []))

    assert result.ret == 1
    result.stdout.fnmatch_lines(["step +*% *(threshold +*%)*", f"FAILED *{pattern(now)} - *"])
    assert names(recorded) == before


@pytest.mark.parametrize("name", CHANGES)
def test_an_update_moves_what_is_stored_and_the_message_offers_it(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, now = CHANGES[name]
    change(recorded.path)
    count = len(names(recorded))
    if now != "test_it.py::test_load[ws2]":
        offered = f"{pattern(now[:-1])}* * test_it.py::test_load?ws2*--distbench-update=new moves it"
        run(recorded).stdout.fnmatch_lines([offered])
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    refused = run(recorded, "--distbench-update=new", now)
    assert (refused.ret, now in names(recorded)) == (1, now == "test_it.py::test_load[ws2]")
    monkeypatch.delenv("DISTBENCH_STAND_IN_FACTOR")
    assert run(recorded, "--distbench-update=new").ret == 0

    assert now in names(recorded)
    assert len(names(recorded)) == count + ("[4" in now)
    if now != "test_it.py::test_load[ws2]":
        assert "test_it.py::test_load[ws2]" not in names(recorded)
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    assert run(recorded, now).ret == 1


COPY = LOAD.replace("test_load", "test_copy")


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        (edit((LOAD, LOAD + COPY)), ["-k", "copy"]),
        (edit((LOAD, LOAD + COPY)), ["test_it.py::test_copy"]),
        (edit((LOAD, LOAD + COPY)), ["--deselect", "test_it.py::test_load"]),
        (edit((LOAD, f"if True:\n{METHOD}".replace("\n", "\n    ").rstrip() + f"\n{LOAD}{COPY}")), []),
        (edit((LOAD, "from base import test_load\n" + COPY)), ["test_it.py::test_copy"]),
        (edit((LOAD, '@pytest.mark.skip("today")\n' + LOAD + COPY)), []),
        (edit((LOAD, LOAD + COPY.replace('"files": 4', '"files": 5'))), []),
        (edit((LOAD, COPY.replace('"files": 4', '"files": 5'))), []),
        (edit((LOAD, COPY.replace("STEP", '{"other": [1.0]}'))), []),
        (edit((LOAD, COPY.replace("params", 'name="one", params'))), []),
    ],
)
def test_what_is_stored_of_a_test_that_is_there_is_of_no_other(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, change: Change, arguments: list[str]
) -> None:
    (recorded.path / "base.py").write_text((recorded.path / "test_it.py").read_text().split("def test_other")[0])
    change(recorded.path)
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    result = run(recorded, *arguments)

    assert "was compared with" not in result.stdout.str()
    assert not [line for line in result.outlines if re.match("FAILED .*copy", line)]


def test_of_two_that_fit_equally_none_is_guessed(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    edit((LOAD, LOAD + COPY))(recorded.path)
    assert run(recorded, "--distbench-update", "--distbench-launches=5").ret == 0
    edit((LOAD, LOAD.replace("test_load", "test_third")), (COPY, ""))(recorded.path)
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "15")
    result = run(recorded, "test_it.py::test_third", "--distbench-prune")

    both = " and ".join(f"test_it.py::test_{name}?ws2.gloo.stand-in?" for name in ("copy", "load"))
    result.stdout.fnmatch_lines(
        [f"test_it.py::test_third?ws2* was not compared: {both}, whose tests are gone, fit it*"]
    )
    assert result.ret == 0


def test_prune_leaves_what_was_compared_with(recorded: pytest.Pytester) -> None:
    edit(to="test_new.py")(recorded.path)
    before = names(recorded)
    assert run(recorded, "--distbench-prune").ret == 0
    assert names(recorded) == before
    assert recorded.runpytest_subprocess("-n2", "--distbench-update").ret == 0
    assert names(recorded) == {name.replace("test_it", "test_new") for name in before}
