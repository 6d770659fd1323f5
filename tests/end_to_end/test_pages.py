"""Pages that lead from nothing to a failing regression: their files are written and their commands run, in order."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import RunInside
from support.projects import ALONE
from support.repositories import git

DOCS = Path(__file__).parents[2] / "docs"
LIMIT_S = 150
AS_A_COMMITTER = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": "a@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
SHORT = ["--distbench-launches=:5", "--distbench-confirm=auto:60"]
"""Options of comparisons of two trees, whose output is checked, but not their outcome, which depends on timings: on a
busy machine five pairs may be estimated to last longer than five seconds, and then none begins."""
SHORTER = {"first-day": "warmup=1, iterations=4)", "fingerprints": "warmup=5, iterations=10)"}
"""Page -> its loop here, shorter than a reader's, who wants a quiet number."""


def steps(page: Path) -> list[tuple[str, str]]:
    """The page's blocks: a file's name and text, or a command and the output it promises, in order."""
    found = []
    for language, text in re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL):
        if language in ("python", "toml") and (file := re.match(r"# (\S+\.(?:py|toml))\n", text)):
            found.append((file[1], text))
        elif language == "console":
            parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
            found += [(f"$ {command}", output) for command, output in zip(parts[::2], parts[1::2], strict=True)]
    return found


def enter(words: list[str], folder: Path, run_inside: RunInside) -> tuple[int, str]:
    """A command: its exit code, and what is on the screen."""
    if words[0] == "pytest" and "torch.testing._internal" not in (folder / words[1]).read_text():
        result = run_inside(*words[1:])
        return result.ret, f"{result.stdout}\n{result.stderr}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **ALONE, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.spawn
@pytest.mark.parametrize(
    "page",
    [
        pytest.param("elastic", marks=pytest.mark.nightly),
        "files",
        "fingerprints",
        "first-day",
        "forecast",
        "layouts",
        "migration",
        "numbers",
        pytest.param("scripts", marks=pytest.mark.nightly),
        pytest.param("trainings", marks=pytest.mark.nightly),
        "writing",
    ],
)
def test_a_page_does_what_it_says(
    page: str, pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs of pytest import no torch, except those with torch's own helpers for tests.

    Any outcome is right where a page promises none, such as one that depends on timings. The README's commands are
    typed in as a user does, in ``test_readme``.
    """
    pytester.makeini("[pytest]\n")
    for variable, value in AS_A_COMMITTER.items():
        monkeypatch.setenv(variable, value)
    git(pytester.path, "init", "-q")
    for name, text in steps(DOCS / f"{page}.md"):
        if not name.startswith("$ "):
            (pytester.path / name).parent.mkdir(exist_ok=True)
            (pytester.path / name).write_text(text.replace("warmup=5, iterations=100)", SHORTER.get(page, "")))
            continue
        given = shlex.split(name.removeprefix("$ "))
        settings = list(itertools.takewhile(re.compile(r"[A-Z]+=").match, given))
        words = given[len(settings) :]
        is_open = words[0] == "pytest" and not re.search(r"\d (passed|failed)", text)
        short = SHORT if is_open else []
        with monkeypatch.context() as patch:
            for variable, value in (word.split("=", 1) for word in settings):
                patch.setenv(variable, value)
            code, told = enter([*words, *short], pytester.path, run_inside)
        assert code == 0 or "failed" in text or (is_open and code == 1), told
        for line in text.splitlines():
            assert fnmatch.fnmatch(told, f"*{line.strip('.').replace('[', '[[]')}*"), (
                f"{name}: {line!r} is not in\n{told}"
            )


def rows(page: Path) -> list[list[str]]:
    """What the right column of the tables "there, here" has in code, row by row."""
    tables = re.findall(r"^\| there \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    return [re.findall(r"`([^`]+)`", line.rpartition(" | ")[2]) for table in tables for line in table.splitlines()]


TABLES = Path(__file__).parents[1] / "support" / "distributed_tests.py.txt"


@pytest.mark.nightly
@pytest.mark.spawn
def test_the_tables_run(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    (pytester.path / "test_table.py").write_text(TABLES.read_text())
    code, told = enter(["pytest", "test_table.py", "--world-size", "2"], pytester.path, run_inside)

    assert code == 0, told
    assert "7 passed, 4 skipped" in told


def test_every_line_of_the_tables_is_in_the_file_that_is_run() -> None:
    code = TABLES.read_text()
    found = [*rows(DOCS / "writing.md"), *rows(DOCS / "migration.md")]

    assert len(found) == 17
    assert all(found)
    for row in found:
        for part in row:
            assert fnmatch.fnmatchcase(code, "*" + re.sub(r"([\[*?])", r"[\1]", part).replace("...", "*") + "*"), part
