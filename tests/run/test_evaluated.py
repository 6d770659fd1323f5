"""What of a repository pytest itself evaluates, so that both sides of a comparison have it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.repositories import git

from pytest_distbench.run.evaluated import Evaluation, differing
from pytest_distbench.run.worktree import Revision

TEST = """
import os
import evaluated_layers, evaluated_work
from evaluated_config import NUMBERS as numbers
STEPS = 4
COUNT = 5

def helper(): return 1

def size(): return numbers[0]

def body(rank):
    "It steps."
    evaluated_work.step(helper(), STEPS)

@pytest.fixture
def config(): return {"layers": evaluated_layers.LAYERS}

def test_it(distbench, config): distbench.run(body, params={"n": size(), "count": COUNT})

def test_other(distbench): distbench.run(body)
"""
FILES = {
    "test_evaluated_it.py": TEST,
    "conftest_of_it.py": "import os\n\ndef pytest_configure(config): pass\n",
    "evaluated_layers.py": "LAYERS = 10\n",
    "evaluated_work.py": "def step(*given): pass\n",
    "evaluated_config.py": "import evaluated_deep\nNUMBERS = [evaluated_deep.N]\n",
    "evaluated_deep.py": "N = 1\n",
    "pytest.ini": "[pytest]\naddopts = -ra\n",
    "pyproject.toml": "[project]\nversion = '1'\n[tool.pytest.ini_options]\naddopts = '-ra'\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository whose modules pytest has imported."""
    for name, text in FILES.items():
        (tmp_path / name).write_text("import pytest\n" + text if name.startswith("test_") else text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("test_evaluated_it", "conftest_of_it"):
        importlib.import_module(name)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def found(project: Path, ini: str = "pytest.ini") -> tuple[list[str], bool]:
    revision = Revision("", git(project, "rev-parse", "HEAD").strip(), project.resolve())
    evaluation = Evaluation(
        module="test_evaluated_it",
        function="test_it",
        bodies=frozenset({"body"}),
        plugins=["conftest_of_it"],
        ini=project / ini,
    )
    seen = differing(evaluation, revision)
    return [*seen.names], seen.are_of_the_test


def change(project: Path, name: str, old: str, new: str) -> None:
    text = (project / name).read_text()
    assert old in text
    (project / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("test_evaluated_it.py", "steps.", "steps, and more."),
        ("test_evaluated_it.py", "helper(), STEPS", "2 * helper(), STEPS"),
        ("test_evaluated_it.py", "STEPS = 4", "STEPS = 8"),
        ("test_evaluated_it.py", "def helper(): return 1", "def helper():\n    # two\n    return 2"),
        ("test_evaluated_it.py", "def test_other(distbench): distbench.run(body)", "def test_third(): pass"),
        ("test_evaluated_it.py", "import os", "import os, json"),
        ("evaluated_work.py", "pass", "import time; time.sleep(1)"),
        ("conftest_of_it.py", "def", "# a comment\ndef"),
        ("pyproject.toml", "version = '1'", "version = '2'"),
    ],
)
def test_what_ranks_run_from_their_own_tree_is_of_each_side(project: Path, name: str, old: str, new: str) -> None:
    change(project, name, old, new)

    assert found(project, name if name.endswith(".toml") else "pytest.ini")[0] == []


@pytest.mark.parametrize(
    ("name", "old", "new", "is_of_the_test"),
    [
        ("test_evaluated_it.py", '{"layers": evaluated_layers.LAYERS}', '{"layers": 20}', True),
        ("test_evaluated_it.py", "import os", "import os\nos.environ['SLOW'] = '1'", True),
        ("test_evaluated_it.py", "def size(): return numbers[0]", "def size(): return 2", True),
        ("test_evaluated_it.py", "COUNT = 5", "COUNT = 50", True),
        ("conftest_of_it.py", "pass", "os.environ['MYPKG_DEBUG'] = '1'", True),
        ("pytest.ini", "-ra", "-rA", True),
        ("pyproject.toml", "-ra", "-rA", True),
        ("evaluated_layers.py", "10", "20", False),
        ("evaluated_config.py", "[evaluated_deep.N]", "[2]", False),
        ("evaluated_deep.py", "N = 1", "N = 2", False),
    ],
)
def test_what_pytest_evaluates_is_of_both(project: Path, name: str, old: str, new: str, is_of_the_test: bool) -> None:
    change(project, name, old, new)

    assert found(project, name if name.endswith(".toml") else "pytest.ini") == ([name], is_of_the_test)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_file_that_has_moved_is_compared_with_what_it_was(project: Path, is_other: bool) -> None:
    git(project, "mv", "conftest_of_it.py", "was_there.py")
    git(project, "commit", "--quiet", "--message", "elsewhere")
    git(project, "mv", "was_there.py", "conftest_of_it.py")
    if is_other:
        change(project, "conftest_of_it.py", "pass", "print()")
    revision = Revision("", git(project, "rev-parse", "HEAD").strip(), project.resolve())
    moved = [((project / "conftest_of_it.py").resolve(), (project / "was_there.py").resolve())]
    seen = differing(Evaluation(plugins=["conftest_of_it"]), revision, moved)

    assert [*seen.names] == ["conftest_of_it.py"] * is_other


def test_a_file_that_the_revision_does_not_have_differs(project: Path) -> None:
    git(project, "rm", "--quiet", "--cached", "conftest_of_it.py")
    git(project, "commit", "--quiet", "--message", "without")
    git(project, "add", "conftest_of_it.py")

    assert found(project) == (["conftest_of_it.py"], True)
