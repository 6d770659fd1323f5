"""Running git for a folder: the folder decides, not the variables of a hook around pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench import git


def test_the_folder_decides_which_repository_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
        assert git.run(tmp_path / name, "init", "--quiet").returncode == 0
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))

    assert git.run(tmp_path / "here", "rev-parse", "--show-toplevel").stdout == f"{tmp_path / 'here'}\n"


def test_a_refusal_is_an_exit_code_with_gits_words(tmp_path: Path) -> None:
    done = git.run(tmp_path, "rev-parse", "--verify", "HEAD")

    assert done.returncode != 0
    assert "not a git repository" in done.stderr


def test_an_ignored_file_has_the_rule_of_git_unless_it_is_tracked(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    file = tmp_path / "baselines" / "a.json"
    file.write_text("{}")
    assert git.why_ignored(file) == "", "there is no repository"
    git.run(tmp_path, "init", "--quiet")
    assert git.why_ignored(file) == ""
    (tmp_path / ".gitignore").write_text("*.pyc\nbaselines/\n")

    assert git.why_ignored(file) == ".gitignore:2: baselines/"
    (tmp_path / ".gitignore").write_text("*.json\n!baselines/**\n")
    assert git.why_ignored(file) == "", "a rule takes it out of another"
    (tmp_path / ".gitignore").write_text("*.json\n")
    assert git.why_ignored(file) == ".gitignore:1: *.json"
    git.run(tmp_path, "add", "--force", "baselines/a.json")
    assert git.why_ignored(file) == ""


def test_a_branch_is_that_of_the_job_or_the_one_that_is_checked_out(tmp_path: Path) -> None:
    assert git.describe_branch(tmp_path, inherited={}) == ""
    git.run(tmp_path, "init", "--quiet", "--initial-branch=faster")
    assert git.describe_branch(tmp_path, inherited={}) == "faster"
    assert git.describe_branch(tmp_path, inherited={"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"}) == "main"


@pytest.mark.parametrize(
    ("inherited", "number"),
    [
        ({"GITHUB_REF": "refs/pull/12/merge"}, "12"),
        ({"GITHUB_REF": "refs/heads/pull-request/7"}, "7"),
        ({"CI_MERGE_REQUEST_IID": "3"}, "3"),
        ({"GITHUB_REF": "refs/heads/main-2"}, ""),
        ({}, ""),
    ],
)
def test_the_number_of_a_pull_request_comes_from_the_ci_system(inherited: dict[str, str], number: str) -> None:
    assert git.pull_request(inherited) == number
