"""distbench ci: what it makes of what another job measured, with a fake of ``gh`` that notes its arguments."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.repositories import git
from support.results import result, run, verdict

import pytest_distbench
from pytest_distbench.commands.cli import main
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import RunRecord
from pytest_distbench.store.files import write_run_record

GH = """#!/bin/bash
printf "%s\\n" "$@" "" >> "$CALLS"
case "$*" in
  *artifacts\\?*) cat "$ARTIFACTS" ;;
  *--paginate*) printf "%s" "$KNOWN" ;;
  */6/zip) exit 1 ;;
  */zip) cat "$ZIP" ;;
  *"$REFUSED"*) echo "not allowed" >&2; exit 1 ;;
esac
"""
JUNIT = """<testsuites><testsuite>
<testcase classname="suites.a" name="test_a"/>
<testcase classname="suites.a" name="test_b[ws2]"><failure message="assert 1 == 2&#10;more">x</failure></testcase>
<testcase classname="suites.a" name="test_c"><error>x</error></testcase>
</testsuite></testsuites>"""
RED = result(verdict("beyond-threshold"), outcome="failed", headline="step +50 %")


INSTALLED = ("msgspec", "psutil", "filelock", "pytest", "iniconfig", "packaging", "pluggy", "pygments")
"""What pip installs of msgspec, psutil, filelock and pytest."""


class Job:
    """A job of GitHub's that has checked out a repository of one commit."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.temp, self.work, self.origin, programs = (folder / name for name in ("temp", "work", "origin", "bin"))
        for made in (self.temp, self.work, programs):
            made.mkdir()
        (programs / "gh").write_text(GH)
        (programs / "gh").chmod(0o755)
        git(self.work, "init", "-q", "-b", "main")
        self.commit("first", "")
        git(folder, "clone", "-q", "--bare", str(self.work), str(self.origin))
        git(self.work, "remote", "add", "origin", str(self.origin))
        self._calls, self._capsys, self._monkeypatch = folder / "calls", capsys, monkeypatch
        monkeypatch.chdir(self.work)
        self.set(
            PATH=f"{programs}:{os.environ['PATH']}",
            CALLS=str(self._calls),
            KNOWN="",
            REFUSED="nothing",
            ARTIFACTS=os.devnull,
            ZIP=str(folder / "zip"),
            GIT_CONFIG_GLOBAL=os.devnull,
            RUNNER_TEMP=str(self.temp),
            GITHUB_REF="refs/heads/main",
            GITHUB_REF_NAME="main",
            GITHUB_REPOSITORY="o/r",
            GITHUB_RUN_ATTEMPT="1",
            GITHUB_RUN_ID="5",
            GITHUB_SERVER_URL="https://github.com",
            **{f"GITHUB_{name}": str(self.temp / name.lower()) for name in ("OUTPUT", "STEP_SUMMARY")},
        )

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def commit(self, name: str, text: str) -> None:
        (self.work / name).parent.mkdir(parents=True, exist_ok=True)
        (self.work / name).write_text(text)
        git(self.work, "add", ".")
        git(self.work, "commit", "-q", "-m", name)

    def give(self, folder: str, record: RunRecord) -> Path:
        """What another job has left, or this one before."""
        (self.temp / folder).mkdir(exist_ok=True)
        write_run_record(self.temp / folder / "run.json", record)
        return self.temp / folder

    def run(self, command: str, code: int = 0) -> str:
        assert main(["ci", command]) == code
        told = self._capsys.readouterr()
        return told.out + told.err

    @property
    def calls(self) -> Sequence[Sequence[str]]:
        text = self._calls.read_text() if self._calls.exists() else ""
        return [call.splitlines() for call in text.split("\n\n") if call]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Job:
    return Job(tmp_path, monkeypatch, capsys)


def comment(number: int, mark: str, *, by: str = "Bot") -> str:
    return json.dumps({"id": number, "user": {"type": by}, "body": f"<!-- distbench {mark} -->\nold"}) + "\n"


@pytest.mark.parametrize("command", ["comment", "publish"])
@pytest.mark.parametrize(
    ("ref", "known", "send"),
    [
        ("refs/pull/7/merge", comment(41, "other"), ["POST", "repos/o/r/issues/7/comments"]),
        (
            "refs/pull/7/merge",
            comment(41, "a-1", by="User") + comment(42, "a-1"),
            ["PATCH", "repos/o/r/issues/comments/42"],
        ),
        ("refs/heads/pull-request/9", "", ["POST", "repos/o/r/issues/9/comments"]),
    ],
)
def test_a_comment_is_written_once_and_replaced(
    job: Job, ref: str, known: str, send: Sequence[str], command: str
) -> None:
    job.give("distbench-measured", run(RED, commit="abc"))
    job.set(GITHUB_REF=ref, KNOWN=known, ARTIFACT="a-1")
    told = job.run(command)
    body = (job.temp / "body.md").read_text()

    assert job.calls[1] == ["api", "--method", *send, "--field", f"body=@{job.temp}/body.md", "--silent"]
    assert body.startswith("<!-- distbench a-1 -->\n### distbench: 1 of 1 case failed")
    assert "[this run](https://github.com/o/r/actions/runs/5)" in body
    assert "::" not in told


def test_where_nothing_can_be_said_there_is_no_comment_and_that_is_no_failure(job: Job) -> None:
    told = [job.run("comment")]
    job.set(GITHUB_REF="refs/pull/7/merge")
    told.append(job.run("comment"))
    folder = job.give("distbench-measured", run(RED))
    job.set(REFUSED="--silent")
    told.append(job.run("comment"))
    (folder / "run.json").write_text("{\n::error::x")
    told.append(job.run("comment"))

    starts = ("this is no pull request", "nothing was measured", "this job may not write one", str(folder))
    assert all(
        text.startswith(f"::notice title=distbench::no comment: {start}")
        for text, start in zip(told, starts, strict=True)
    )
    assert [text.count("\n") for text in told] == [1] * 4


@pytest.mark.parametrize("command", ["history", "publish"])
def test_the_history_is_of_the_records_that_runs_of_this_branch_have_kept(job: Job, command: str) -> None:
    def artifact(number: int, *, branch: str = "main", of: int = 1, expired: bool = False) -> str:
        kept_by = {"head_branch": branch, "head_repository_id": of, "repository_id": 1}
        return json.dumps({"id": number, "expired": expired, "workflow_run": kept_by}) + "\n"

    (job.temp / "rows").write_text(
        artifact(1)
        + artifact(2, branch="mine")
        + artifact(3, of=2)
        + artifact(4, expired=True)
        + artifact(5)
        + artifact(6)
    )
    with zipfile.ZipFile(os.environ["ZIP"], "w") as made:
        made.write(job.give("kept", run(result(verdict()))) / "run.json", "run.json")
        made.writestr("../page.html", "")
    job.set(ARTIFACTS=str(job.temp / "rows"), ARTIFACT="perf")
    told, folder = job.run(command), job.temp / "distbench-history"

    assert sorted(path.name for path in (folder / "records").iterdir()) == ["1.json", "5.json"]
    assert job.calls[0] == [
        "api", "--paginate", "repos/o/r/actions/artifacts?name=perf&per_page=100", "--jq", ".artifacts[]"
    ]  # fmt: skip
    assert "the history is without artifact 6" in told
    assert "2 runs, 2026-01-02 to 2026-01-02" in (job.temp / "step_summary").read_text()
    assert (folder / "history.csv").read_text().startswith("platform,test,metric")


def test_without_a_record_there_is_no_history_and_that_is_no_failure(job: Job) -> None:
    assert job.run("history").startswith("::notice title=distbench::no history: ")


@pytest.mark.parametrize(("settings", "folder"), [({}, "baselines"), ({"baselines": "perf/stored"}, "perf/stored")])
def test_what_was_recorded_is_kept_where_other_tests_failed_and_wherever_baselines_are(
    job: Job, settings: dict[str, str], folder: str
) -> None:
    out = job.give("distbench-out", run(RED, settings=settings))
    (out / "junit.xml").write_text(JUNIT)
    (job.work / folder).mkdir(parents=True, exist_ok=True)
    (job.work / folder / "README.md").write_text("new")
    (job.work / "left.txt").touch()
    job.run("changes")
    text = (out / "changes.md").read_text()

    assert text.endswith("```text\nsuites.a.test_b[ws2]: assert 1 == 2\nsuites.a.test_c: \n```\n")
    assert (job.temp / "step_summary").read_text() == text
    assert (job.temp / "output").read_text() == "recorded=true\n"
    assert git(job.work, "diff", "--cached", "--name-only").split() == [f"{folder}/README.md"]
    assert "+new" in (out / "baselines.patch").read_text()


def test_baselines_that_git_ignores_are_an_error_that_says_so(job: Job) -> None:
    job.commit(".gitignore", "stored/\n")
    job.give("distbench-out", run(RED, settings={"baselines": "stored"}))

    assert ".gitignore has stored, and baselines are committed" in job.run("changes", 1)


def test_where_no_baseline_changed_nothing_is_proposed(job: Job) -> None:
    job.run("changes")
    job.give("distbench-out", run(result(verdict())))
    job.run("changes")

    assert not (job.temp / "output").exists()
    assert "failed" not in (job.temp / "step_summary").read_text()


@pytest.fixture
def proposed(job: Job) -> Job:
    """Another job has recorded: a baseline is new, one is gone, and it touched what is none."""
    job.commit("baselines/a.json", "old")
    git(job.work, "push", "-q", "origin", "main")
    git(job.work, "rm", "-q", "baselines/a.json")
    (job.work / "code.py").write_text("import this\n")
    job.commit("baselines/b.json", "new")
    measured = job.temp / "distbench-measured"
    measured.mkdir()
    (measured / "baselines.patch").write_text(git(job.work, "diff", "--binary", "HEAD~"))
    (measured / "changes.md").write_text("table\n" * 20_000)
    git(job.work, "reset", "-q", "--hard", "HEAD~")
    job.set(HOST="gpu-1")
    return job


def test_new_baselines_become_a_branch_and_a_pull_request_with_the_old_and_new_numbers(proposed: Job) -> None:
    told, branch = proposed.run("propose"), "baselines/gpu-1-5-1"

    assert git(proposed.origin, "log", "-1", "--format=%s %an", branch).strip() == (
        "New baselines of gpu-1, measured in run 5 github-actions[bot]"
    )
    changed = git(proposed.origin, "diff", "--name-status", "--no-renames", "main", branch).split()
    assert changed == ["D", "baselines/a.json", "A", "baselines/b.json"]
    assert proposed.calls[-1][:6] == ["pr", "create", "--base", "main", "--head", branch]
    assert 50_000 < (proposed.temp / "body.md").stat().st_size < 65_536
    assert "::error" not in told


def test_a_refused_pull_request_is_an_error_that_names_the_setting(proposed: Job) -> None:
    proposed.set(REFUSED="pr create")
    told = proposed.run("propose", 1)

    assert told.startswith("::error title=distbench::baselines/gpu-1-5-1 is pushed, and GitHub refused")
    assert "Allow GitHub Actions to create and approve pull requests" in told
    assert told.endswith("https://github.com/o/r/compare/main...baselines/gpu-1-5-1\n")


def test_elsewhere_than_in_a_job_it_says_what_is_missing(job: Job) -> None:
    job.set(RUNNER_TEMP="")

    assert "RUNNER_TEMP is not set: distbench ci is for jobs of GitHub Actions" in job.run("history", 2)


def test_a_git_that_refuses_ends_it_with_what_it_said(proposed: Job) -> None:
    git(proposed.work, "branch", "baselines/gpu-1-5-1")

    assert "git switch: fatal: a branch named 'baselines/gpu-1-5-1' already exists" in proposed.run("propose", 2)


def test_records_are_read_accepted_and_commented_on_where_nothing_that_measures_is_installed(
    job: Job, tmp_path: Path
) -> None:
    """The environment is that of ``pip install --no-deps``, with few other packages."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in INSTALLED:
        files = importlib.metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files} - {".."}:
            (packages / top).symlink_to(importlib.metadata.distribution(name).locate_file(top))
    (packages / "pytest_distbench").symlink_to(Path(pytest_distbench.__file__).parent)
    metadata = packages / "pytest_distbench-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pytest-distbench\nVersion: 0.1.0\n")
    counted = Sample(name="tokens", unit="", better="exact", value=3.0)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[counted])
    record = job.give("distbench-measured", run(result(verdict("exact-number"), launches=[launch]))) / "run.json"
    (job.temp / "runs").mkdir()
    for day in range(1, 21):
        write_run_record(job.temp / f"runs/{day}.json", run(RED, started=f"2026-01-{day:02}T00:00:00+00:00"))
    job.set(GITHUB_REF="refs/pull/7/merge")
    begin = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pytest_distbench.commands.cli import main"
    for words in (
        ["report", str(record)],
        ["report", str(record), "--format", "html", "-o", str(job.temp / "run.html")],
        ["history", str(job.temp / "runs")],
        ["baseline", "accept", str(record)],
        ["baseline", "diff"],
        ["ci", "comment"],
    ):
        command = [sys.executable, "-I", "-S", "-c", f"{begin}; sys.exit(main())", str(packages), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout)
    code = f"{begin}; import torch"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(packages)], capture_output=True, check=False)
    assert b"No module named 'torch'" in done.stderr
