"""A project in a repository of one commit."""

from __future__ import annotations

import os

import pytest
from support.projects import TEST, Project
from support.repositories import git


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's settings nor a repository above the test's folder matter."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def committed(project: Project, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The test above in a repository of one commit; run directories are in tmp/, which git ignores."""
    made = project(TEST)
    (made.path / ".gitignore").write_text("tmp/\n__pycache__/\n")
    (made.path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made.path / "tmp"))
    git(made.path, "init", "-q")
    git(made.path, "add", "-A")
    git(made.path, "commit", "-q", "-m", "first")
    return made
