"""The steps of the action and of the workflow that records, run by bash as on a runner, with stand-ins for programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.repositories import git

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
OF_A_RUNNER = ("GITHUB_PATH", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_STEP_SUMMARY", "UV")
OF_STAND_INS = ("KNOWN", "REFUSED", "MEASURED")


def read(path: str) -> Any:
    return YAML(typ="safe").load((GITHUB / path).read_text())


def step(steps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [found] = [s for s in steps if s.get("name", "").startswith(name)]
    return found


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for ``pytest``, ``distbench`` and ``gh``: each notes its arguments, a line each, and a blank line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("pytest", "distbench", "gh"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" "" >> "$CALLS"\n{answer(name)}')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    return folder


def answer(name: str) -> str:
    """What a stand-in does besides."""
    if name == "distbench":
        return 'case "$*" in *comment.md) mkdir -p distbench-out && echo mark > distbench-out/comment.md ;; esac\n'
    if name != "gh":
        return ""
    return (
        'case "$*" in\n'
        '  *--paginate*) printf "%s" "$KNOWN" ;;\n'
        '  *body=@*) exit "${REFUSED:-0}" ;;\n'
        '  "run download"*) mkdir -p measured/out && cp -r "$MEASURED" measured/baselines\n'
        "    echo table > measured/out/changes.md ;;\n"
        "esac\n"
    )


def run(script: Mapping[str, Any], folder: Path, **variables: str) -> tuple[str, list[list[str]]]:
    """What a step prints, and the programs that it called; its variables are those it declares, and a runner's."""
    assert set(variables) <= {*script.get("env", {}), *OF_A_RUNNER, *OF_STAND_INS}
    declared = dict.fromkeys(script.get("env", {}), "")
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script["run"]]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **declared, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    calls = Path(os.environ["CALLS"])
    return done.stdout, [c.splitlines() for c in calls.read_text().split("\n\n") if c] if calls.exists() else []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "baselines").mkdir()
    (folder / "baselines" / "a.json").write_text("old")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


MEASURE = read("actions/measure/action.yml")["runs"]["steps"]
OUT = ["--distbench-out=distbench-out", "--junitxml=distbench-out/junit.xml"]


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"SUITES": "suites/ more", "WORLD_SIZE": "2"}, ["suites/", "more", "--world-size", "2"]),
        (
            {"SUITES": "s", "WORLD_SIZE": "4", "GPU": "true", "OPTIONS": "-k step --distbench-strict"},
            ["s", "--world-size", "4", "-k", "step", "--distbench-strict", "--gpu"],
        ),
        (
            {"SUITES": "s", "WORLD_SIZE": "2", "AGAINST": "base", "BASE": "HEAD"},
            ["s", "--world-size", "2", "--distbench-against=COMMIT"],
        ),
        ({"SUITES": "s", "WORLD_SIZE": "2", "AGAINST": "base"}, ["s", "--world-size", "2"]),
        ({"SUITES": "$(touch x) ;", "WORLD_SIZE": "2; ls"}, ["$(touch", "x)", ";", "--world-size", "2; ls"]),
    ],
)
@pytest.mark.usefixtures("programs")
def test_measuring_hands_the_inputs_to_pytest_as_they_are(
    repository: Path, variables: dict[str, str], wanted: list[str]
) -> None:
    _, [call] = run(step(MEASURE, "Measure"), repository, **variables)

    commit = git(repository, "rev-parse", "HEAD").strip()
    assert call == ["pytest", *(word.replace("COMMIT", commit) for word in wanted), *OUT]
    assert not (repository / "x").exists()


@pytest.mark.usefixtures("programs")
def test_a_branch_is_measured_where_this_one_left_it(repository: Path) -> None:
    left = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "switch", "-q", "-c", "mine")
    git(repository, "commit", "-q", "--allow-empty", "-m", "mine")
    git(repository, "switch", "-q", "main")
    git(repository, "commit", "-q", "--allow-empty", "-m", "theirs")
    git(repository, "switch", "-q", "mine")
    _, [call] = run(step(MEASURE, "Measure"), repository, SUITES="s", WORLD_SIZE="2", AGAINST="main")

    assert f"--distbench-against={left}" in call


@pytest.mark.usefixtures("programs")
def test_baselines_are_proposed_beside_those_that_stand(repository: Path) -> None:
    (repository / "distbench-out").mkdir()
    _, calls = run(step(MEASURE, "Propose"), repository, SUITES="s", WORLD_SIZE="2", GPU="true", OPTIONS="-k step")
    proposed = "distbench-out/baselines.proposed"

    assert calls == [["distbench", "baseline", "accept", "distbench-out/run.json", "--baselines", proposed]]
    assert (repository / proposed / "a.json").read_text() == (repository / "baselines" / "a.json").read_text()


def test_what_needs_more_launches_is_measured_where_stored_baselines_judge(repository: Path, programs: Path) -> None:
    (programs / "distbench").write_text("#!/bin/sh\nexit 1\n")
    script = step(MEASURE, "Propose")
    _, [failed, new] = run(script, repository, SUITES="s", WORLD_SIZE="2", GPU="true", AGAINST="base")
    again = ["pytest", "s", "--world-size", "2", "--distbench-baselines=distbench-out/baselines.proposed", "--gpu"]

    assert failed == [*again, "--last-failed", "--last-failed-no-failures=none", "--distbench-update=failed"]
    assert new == [*again, "--distbench-update=new"]
    _, calls = run(script, repository, SUITES="s", WORLD_SIZE="2", AGAINST="base", BASE="HEAD")
    assert len(calls) == 2


INSTALL = step(read("workflows/measure.yml")["jobs"]["measure"]["steps"], "Install")


@pytest.mark.parametrize(
    ("given", "installed"),
    [({}, ["./.distbench"]), ({"DISTBENCH": "-e .[suites]", "INSTALL": "a b"}, ["-e", ".[suites]", "a", "b"])],
)
@pytest.mark.usefixtures("programs")
def test_the_plugin_that_is_installed_is_that_of_the_workflow_or_the_one_that_is_named(
    repository: Path, tmp_path: Path, given: dict[str, str], installed: list[str]
) -> None:
    uv = repository / ".venv-uv" / "bin"
    uv.mkdir(parents=True)
    for name in ("pip", "uv"):
        (uv / name).symlink_to(tmp_path / "bin" / "gh")
    (tmp_path / "bin" / "python3").symlink_to(tmp_path / "bin" / "gh")
    path = tmp_path / "path"
    _, calls = run(INSTALL, repository, PYTHON="3.12", TORCH="torch", GITHUB_PATH=str(path), UV="uv", **given)

    assert calls[-1][1:] == ["pip", "install", "--python", ".venv", "--torch-backend=auto", "torch", *installed]
    assert path.read_text() == f"{repository}/.venv/bin\n"


@pytest.mark.parametrize(
    ("known", "send"),
    [
        ("", ["--method", "POST", "repos/o/r/issues/7/comments"]),
        ("42", ["--method", "PATCH", "repos/o/r/issues/comments/42"]),
    ],
)
@pytest.mark.usefixtures("programs")
def test_a_comment_is_written_once_and_replaced(repository: Path, known: str, send: list[str]) -> None:
    told, calls = run(
        step(MEASURE, "Comment"), repository, NUMBER="7", ARTIFACT="a-1", GITHUB_REPOSITORY="o/r", KNOWN=known
    )

    assert [call[:2] for call in calls] == [["distbench", "report"], ["gh", "api"], ["gh", "api"]]
    assert calls[2][2:] == [*send, "--field", "body=@distbench-out/comment.md", "--silent"]
    assert (repository / "distbench-out" / "comment.md").read_text() == "<!-- distbench a-1 -->\n"
    assert told == ""


@pytest.mark.usefixtures("programs")
def test_without_gh_there_is_no_comment_and_that_is_said(repository: Path, programs: Path) -> None:
    (programs / "gh").unlink()
    told, calls = run(step(MEASURE, "Comment"), repository, NUMBER="7", GITHUB_REPOSITORY="o/r")

    assert told == "::notice title=distbench::no comment: gh is not installed on this runner\n"
    assert calls == []


@pytest.mark.usefixtures("programs")
def test_where_no_comment_may_be_written_that_is_said_and_no_failure(repository: Path) -> None:
    told, _ = run(step(MEASURE, "Comment"), repository, NUMBER="7", GITHUB_REPOSITORY="o/r", REFUSED="1")

    assert told.startswith("::notice title=distbench::no comment, as this job may not write one")


@pytest.mark.usefixtures("programs")
def test_new_baselines_become_a_branch_and_a_pull_request_with_the_old_and_new_numbers(
    repository: Path, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(origin))
    git(repository, "remote", "add", "origin", str(origin))
    measured = tmp_path / "measured"
    measured.mkdir()
    (measured / "b.json").write_text("new")
    propose = step(read("workflows/baselines.yml")["jobs"]["propose"]["steps"], "Push them")
    variables = {"HOST": "gpu-1", "GITHUB_RUN_ID": "5", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    _, calls = run(propose, repository, MEASURED=str(measured), **variables)

    assert git(origin, "log", "-1", "--format=%s %an", "baselines/gpu-1-5").strip() == (
        "New baselines of gpu-1, measured in run 5 github-actions[bot]"
    )
    changed = git(origin, "diff", "--name-status", "--no-renames", "main", "baselines/gpu-1-5").split()
    assert changed == ["D", "baselines/a.json", "A", "baselines/b.json"]
    assert calls[-1][:3] == ["gh", "pr", "create"]
    assert (repository / "body.md").read_text() == "table\n"


@pytest.mark.usefixtures("programs")
def test_where_no_baseline_changed_nothing_is_proposed(repository: Path, tmp_path: Path) -> None:
    propose = step(read("workflows/baselines.yml")["jobs"]["propose"]["steps"], "Push them")
    summary = tmp_path / "summary"
    variables = {"HOST": "gpu-1", "GITHUB_RUN_ID": "5", "GITHUB_STEP_SUMMARY": str(summary)}
    _, calls = run(propose, repository, MEASURED=str(repository / "baselines"), **variables)

    assert summary.read_text() == "no baseline changed\n"
    assert [call[:3] for call in calls] == [["gh", "run", "download"]]
