"""Every command of actions and workflows, ours and those that ``distbench init`` writes, run by bash as on a runner.

Programs are fakes that note their arguments, but git and Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support.commands import GITHUB, ROOT, TEMPLATES, commands, written_by_init
from support.repositories import git

from pytest_distbench.commands.cli import _parser
from pytest_distbench.records.options import OPTIONS

yaml = YAML(typ="safe")
COMMANDS = commands()
FAKE = '#!/bin/bash\nprintf "%s\\n" "${0##*/}" "$@" "" >> "$CALLS"\n'
ANSWERS = {
    "distbench": 'case "$*" in *" -o "*) echo made > "${@: -1}" ;; *diff*|*history*) echo table ;; esac\n',
    "gh": 'case "$*" in\n'
    '  *artifacts\\?*) jq -r "${@: -1}" "$ARTIFACTS" ;;\n'
    '  *--paginate*) printf "%s" "$KNOWN" ;;\n'
    "  */6/zip) exit 1 ;;\n"
    '  */zip) cat "$ZIP" ;;\n'
    '  *"$REFUSED"*) exit 1 ;;\n'
    "esac\n",
    "pytest": 'exit "${FAILED:-0}"\n',
    "python3": 'mkdir -p .venv/bin && for made in pip tox; do ln -sf "$(type -P true)" .venv/bin/$made; done\n',
}
"""What a fake does besides."""


class Runner:
    """A machine of GitHub's that has checked out a repository of one commit, and no file of ours."""

    def __init__(self, folder: Path) -> None:
        self.temp, self.work, self.origin, self._programs = (folder / n for n in ("temp", "work", "origin", "bin"))
        for made in (self.temp, self.work, self._programs):
            made.mkdir()
        for name in ("distbench", "gh", "make", "nvidia-smi", "pytest", "python3", "sudo", "uv"):
            self.fake(name, FAKE + ANSWERS.get(name, ""))
        git(self.work, "init", "-q", "-b", "main")
        self.commit("baselines/a.json", "old")
        git(folder, "clone", "-q", "--bare", str(self.work), str(self.origin))
        git(self.work, "remote", "add", "origin", str(self.origin))
        git(self.work, "fetch", "-q", "origin")
        self.variables = {
            "PATH": f"{self._programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CALLS": str(folder / "calls"),
            "KNOWN": "",
            "REFUSED": "nothing",
            "ARTIFACTS": self.write("artifacts.json", '{"artifacts": []}'),
            "ZIP": str(folder / "zip"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_REF_NAME": "main",
            "GITHUB_RUN_ID": "5",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_SERVER_URL": "https://github.com",
            **{f"GITHUB_{name}": self.write(name.lower(), "") for name in ("PATH", "OUTPUT", "STEP_SUMMARY")},
        }

    def write(self, name: str, text: str) -> str:
        path = self.temp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def fake(self, name: str, text: str) -> None:
        (self._programs / name).write_text(text)
        (self._programs / name).chmod(0o755)

    def commit(self, name: str, text: str) -> str:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git(self.work, "add", ".")
        git(self.work, "commit", "-q", "-m", name)
        return git(self.work, "rev-parse", "HEAD").strip()

    def run(self, name: str, code: int = 0, **variables: str) -> tuple[str, list[list[str]]]:
        """What a step prints, and the calls of programs; ``variables`` take the place of its own, or of a runner's."""
        command = COMMANDS[name]
        assert set(variables) <= {*command.variables, *self.variables, "FAILED"}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"] if command.shell == "bash" else ["bash", "-e"]
        own = {key: text.format(RUNNER_TEMP=self.temp) for key, text in command.variables.items()}
        place = GITHUB / name.rpartition("/")[0]
        done = subprocess.run(
            [*shell, "-uc", command.text],
            cwd=self.work,
            env={**self.variables, "GITHUB_ACTION_PATH": str(place), **own, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "unbound variable" not in done.stderr
        calls = Path(self.variables["CALLS"])
        return done.stdout, [c.splitlines() for c in calls.read_text().split("\n\n") if c] if calls.exists() else []


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


CHANGES = "# Changelog\n\n## 0.2.0\n\n- faster\n\n### Fixed\n\n- a hang\n\n## 0.1.0\n\nfirst\n"


def made_by_make_dist(runner: Runner, version: str) -> None:
    (runner.work / "dist").mkdir()
    (runner.work / "dist" / f"pytest_distbench-{version}.tar.gz").write_text("")
    (runner.work / "CHANGELOG.md").write_text(CHANGES)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_runs_where_nothing_of_ours_is(runner: Runner, name: str) -> None:
    """After the steps before it: what these leave is there. The programs know the words that they are given."""
    assert "${{" not in COMMANDS[name].text  # an expression in a script is code that somebody else may write
    for out in ("out", "distbench-out", "distbench-out/distbench"):
        runner.write(f"{out}/run.json", '{"settings": {}}')
        runner.write(f"{out}/pytest.txt", "FAILED a.py::b - c\n")
    runner.commit("baselines/a.json", "new")
    runner.write("distbench-measured/baselines.patch", git(runner.work, "diff", "HEAD~"))
    git(runner.work, "reset", "-q", "--hard", "HEAD~")
    runner.write("distbench-measured/comment.md", "first\nsecond\n")
    runner.write("distbench-measured/changes.md", "table\n")
    runner.write("distbench-history/records/1/run.json", "{}")
    made_by_make_dist(runner, "main")
    _, calls = runner.run(name)

    for program, *words in calls:
        if program == "distbench":
            _parser().parse_args(words)
        if program == "pytest":
            ours = [word.partition("=")[0].removeprefix("--distbench-") for word in words if "--distbench-" in word]
            assert set(ours) <= set(OPTIONS)


def out_options(runner: Runner) -> list[str]:
    out = runner.temp / "distbench-out" / "distbench"
    return [f"--distbench-out={out}", f"--junitxml={out}/junit.xml"]


MEASURE = "actions/measure/Measure"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"SUITES": "suites/ more", "BASE": ""}, ["suites/", "more", "--world-size", "2"]),
        (
            {"SUITES": "s", "WORLD_SIZE": "4", "GPU": "true", "OPTIONS": "-k step --distbench-strict", "AGAINST": ""},
            ["s", "--world-size", "4", "-k", "step", "--distbench-strict", "--gpu"],
        ),
        (
            {"SUITES": "s\nmore", "OPTIONS": "-k 'a or b'\n-x", "BASE": ""},
            ["s", "more", "--world-size", "2", "-k", "a or b", "-x"],
        ),
        ({"SUITES": "s", "BASE": "HEAD"}, ["s", "--world-size", "2", "--distbench-against=COMMIT"]),
        (
            {"SUITES": "$(touch x) ;", "WORLD_SIZE": "2; ls", "BASE": ""},
            ["$(touch", "x)", ";", "--world-size", "2; ls"],
        ),
    ],
)
def test_measuring_hands_the_inputs_to_pytest_as_they_are(
    runner: Runner, variables: dict[str, str], wanted: list[str]
) -> None:
    _, [call] = runner.run(MEASURE, **variables)

    commit = git(runner.work, "rev-parse", "HEAD").strip()
    assert call == ["pytest", *(word.replace("COMMIT", commit) for word in wanted), *out_options(runner)]
    assert git(runner.work, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"OF": "fork/r"}, ["distbench", "judge"]),
        ({"OF": "fork/r", "JUDGE": "candidate"}, ["pytest"]),
        ({"OF": "fork/r", "AGAINST": ""}, ["pytest"]),
        ({"OF": "o/r", "JUDGE": "base"}, ["distbench", "judge"]),
        ({"OF": ""}, ["pytest"]),
    ],
)
def test_a_pull_request_from_a_fork_is_judged_by_its_base(
    runner: Runner, variables: dict[str, str], wanted: list[str]
) -> None:
    _, [call] = runner.run(MEASURE, SUITES="s", **variables)

    assert call[: call.index("s")] == wanted


def test_what_a_base_judges_is_installed_as_the_base_asks_for(runner: Runner) -> None:
    base = git(runner.work, "rev-parse", "HEAD").strip()
    git(runner.work, "switch", "-q", "-c", "mine")
    change = runner.commit("requirements.txt", "a-plugin")
    runner.run("workflows/measure.yml/measure/What judges is installed as its base asks for", BASE="main")
    while_installing = git(runner.work, "rev-parse", "HEAD").strip()
    output = (runner.temp / "output").read_text()
    runner.run("workflows/measure.yml/measure/The change is back", CHANGE=change)

    assert (while_installing, output) == (base, f"change={change}\n")
    assert git(runner.work, "rev-parse", "HEAD").strip() == change


def test_a_branch_is_measured_where_this_one_left_it(runner: Runner) -> None:
    left = git(runner.work, "rev-parse", "HEAD").strip()
    git(runner.work, "switch", "-q", "-c", "mine")
    runner.commit("mine", "")
    git(runner.work, "switch", "-q", "main")
    runner.commit("theirs", "")
    git(runner.work, "switch", "-q", "mine")
    _, [call] = runner.run(MEASURE, AGAINST="main")

    assert f"--distbench-against={left}" in call


@pytest.mark.parametrize("name", [MEASURE, "init/hosted/suites/Measure"])
def test_a_pull_request_is_compared_with_what_it_was_merged_with(runner: Runner, name: str) -> None:
    """Not with what the event knew, nor with where its base is by now."""
    old = git(runner.work, "rev-parse", "HEAD").strip()
    git(runner.work, "switch", "-q", "-c", "mine")
    head = runner.commit("mine", "")
    git(runner.work, "switch", "-q", "main")
    base = runner.commit("theirs", "")
    git(runner.work, "switch", "-q", "--detach")
    git(runner.work, "merge", "-q", "--no-ff", "-m", "merge", "mine")
    _, [call] = runner.run(name, BASE=old, **({"HEAD": head} if name == MEASURE else {}))

    [against] = [word.partition("=")[2] for word in call if "--distbench-against" in word]
    assert git(runner.work, "rev-parse", against).strip() == base
    assert ("--distbench-advisory" in call) == (name != MEASURE)


@pytest.mark.parametrize("against", ["later", "origin/later"])
def test_what_the_clone_does_not_know_is_fetched_from_its_origin(runner: Runner, against: str) -> None:
    commit = runner.commit("later", "")
    git(runner.work, "push", "-q", "origin", "HEAD:later")
    git(runner.work, "update-ref", "-d", "refs/remotes/origin/later")
    git(runner.work, "switch", "-q", "-c", "mine")
    _, [call] = runner.run(MEASURE, AGAINST=against)

    assert f"--distbench-against={commit}" in call


def test_what_nobody_knows_is_an_error_that_says_how_to_check_out(runner: Runner) -> None:
    told, calls = runner.run(MEASURE, 1, AGAINST="origin/nowhere")

    assert told == (
        "::error title=distbench::origin/nowhere is not in this clone, and could not be fetched: check out with "
        "fetch-depth: 0\n"
    )
    assert calls == []


@pytest.mark.parametrize(
    ("given", "backend", "installed"),
    [
        ({"GPU": "true"}, "auto", [f"{GITHUB}/actions/install/../../.."]),
        ({"DISTBENCH": "-e .[suites]", "INSTALL": "a b"}, "cpu", ["-e", ".[suites]", "a", "b"]),
    ],
)
def test_the_plugin_that_is_installed_is_that_of_the_action_or_the_one_that_is_named(
    runner: Runner, given: dict[str, str], backend: str, installed: list[str]
) -> None:
    _, [made, call] = runner.run("actions/install/Install", **given)
    venv = str(runner.temp / "distbench-venv")

    assert made == ["uv", "venv", "--clear", "--python", "3.12", venv]
    assert call == ["uv", "pip", "install", "--python", venv, f"--torch-backend={backend}", "torch==2.13.0", *installed]
    assert (runner.temp / "path").read_text() == f"{venv}/bin\n"


COMMENT = "actions/comment/Comment"


@pytest.mark.parametrize(
    ("variables", "send"),
    [
        ({"NUMBER": "7", "GITHUB_REF_NAME": "7/merge"}, ["--method", "POST", "repos/o/r/issues/7/comments"]),
        ({"NUMBER": "7", "KNOWN": "42"}, ["--method", "PATCH", "repos/o/r/issues/comments/42"]),
        ({"NUMBER": "", "GITHUB_REF_NAME": "pull-request/9"}, ["--method", "POST", "repos/o/r/issues/9/comments"]),
    ],
)
def test_a_comment_is_written_once_and_replaced(runner: Runner, variables: dict[str, str], send: list[str]) -> None:
    runner.write("distbench-measured/comment.md", "mark\nresult\n")
    told, calls = runner.run(COMMENT, ARTIFACT="a-1", **variables)

    assert calls[1][2:] == [*send, "--field", f"body=@{runner.temp}/body.md", "--silent"]
    assert (runner.temp / "body.md").read_text() == "<!-- distbench a-1 -->\nresult\n"
    assert told == ""


def test_a_comment_that_is_too_long_is_cut(runner: Runner) -> None:
    runner.write("distbench-measured/comment.md", "mark\n" + "a line\n" * 200_000)
    runner.run(COMMENT, NUMBER="7")

    assert 64_000 < (runner.temp / "body.md").stat().st_size < 65_536


def test_where_nothing_can_be_said_there_is_no_comment_and_that_is_no_failure(runner: Runner) -> None:
    told = [runner.run(COMMENT)[0], runner.run(COMMENT, NUMBER="")[0]]
    runner.write("distbench-measured/comment.md", "mark\nresult\n")
    told.append(runner.run(COMMENT, REFUSED="--silent")[0])

    assert [line.removeprefix("::notice title=distbench::no comment: ").partition(",")[0] for line in told] == [
        "nothing was measured\n",
        "this is no pull request",
        "this job may not write one (a fork's may not; others need pull-requests: write); the summary has the same\n",
    ]


@pytest.mark.skipif(shutil.which("jq") is None, reason="gh has a jq of its own, and this machine has none")
def test_the_history_is_of_the_records_that_runs_of_this_branch_have_kept(runner: Runner) -> None:
    def artifact(number: int, *, branch: str = "main", of: int = 1, expired: bool = False) -> dict[str, object]:
        run = {"head_branch": branch, "head_repository_id": of, "repository_id": 1}
        return {"id": number, "expired": expired, "workflow_run": run}

    rows = [
        artifact(1),
        artifact(2, branch="mine"),
        artifact(3, of=2),
        artifact(4, expired=True),
        artifact(5),
        artifact(6),
    ]
    Path(runner.variables["ARTIFACTS"]).write_text(json.dumps({"artifacts": rows}))
    with zipfile.ZipFile(runner.variables["ZIP"], "w") as made:
        made.writestr("run.json", "{}")
    told, calls = runner.run("actions/history/Collect the run records", ARTIFACT="perf")
    records = runner.temp / "distbench-history" / "records"

    assert sorted(str(path.relative_to(records)) for path in records.rglob("*.json")) == ["1/run.json", "5/run.json"]
    assert calls[0][2:4] == ["--paginate", "repos/o/r/actions/artifacts?name=perf-record&per_page=100"]
    assert "without artifact 6" in told


def test_without_a_record_there_is_no_history_and_that_is_no_failure(runner: Runner) -> None:
    runner.run("actions/history/Collect the run records")
    told, calls = runner.run("actions/history/Write the trend of each metric")

    assert told.startswith("::notice title=distbench::no history: ")
    assert [call[0] for call in calls] == ["gh"]


CHANGED = "actions/record/What changed, old and new"


@pytest.mark.parametrize(("settings", "folder"), [({}, "baselines"), ({"baselines": "perf/stored"}, "perf/stored")])
def test_what_was_recorded_is_kept_where_other_tests_failed_and_wherever_baselines_are(
    runner: Runner, settings: dict[str, str], folder: str
) -> None:
    runner.run("actions/record/Measure and record", 1, FAILED="1", SELECT="step", UPDATE="new")
    runner.write("distbench-out/run.json", json.dumps({"settings": settings}))
    runner.write("distbench-out/pytest.txt", "FAILED a.py::b - c\n1 failed\n")
    (runner.work / folder).mkdir(parents=True, exist_ok=True)
    (runner.work / folder / "b.json").write_text("new")
    (runner.work / "left.txt").touch()
    _, calls = runner.run(CHANGED)

    assert calls[0][-6:-1] == ["-k", "step", "-r", "fE", "--distbench-update=new"]
    assert calls[1] == ["distbench", "baseline", "diff", "--baselines", folder, "--markdown"]
    told = "table\n\nThese tests failed, and nothing of them was recorded:\n\n```text\nFAILED a.py::b - c\n```\n"
    assert (runner.temp / "distbench-out" / "changes.md").read_text() == told
    assert (runner.temp / "step_summary").read_text() == told
    assert (runner.temp / "output").read_text() == "recorded=true\n"
    assert git(runner.work, "diff", "--cached", "--name-only").split() == [f"{folder}/b.json"]


def test_baselines_that_git_ignores_are_an_error_that_says_so(runner: Runner) -> None:
    runner.commit(".gitignore", "stored/\n")
    runner.write("distbench-out/run.json", '{"settings": {"baselines": "stored"}}')
    runner.write("distbench-out/pytest.txt", "1 passed\n")

    assert ".gitignore has stored, and baselines are committed" in runner.run(CHANGED, 1)[0]


def test_where_no_baseline_changed_nothing_is_proposed(runner: Runner) -> None:
    runner.run(CHANGED)
    assert (runner.temp / "output").read_text() == ""
    runner.write("distbench-out/run.json", '{"settings": {}}')
    runner.write("distbench-out/pytest.txt", "1 passed\n")
    runner.run(CHANGED)

    assert (runner.temp / "output").read_text() == ""
    assert (runner.temp / "step_summary").read_text() == "table\n"


PROPOSE = "actions/propose/Push them, and open a pull request with the old and new numbers"


@pytest.fixture
def proposed(runner: Runner) -> Runner:
    """Another job has recorded: a baseline is new, one is gone, and it touched what is none."""
    git(runner.work, "rm", "-q", "baselines/a.json")
    (runner.work / "code.py").write_text("import this\n")
    runner.commit("baselines/b.json", "new")
    runner.write("distbench-measured/baselines.patch", git(runner.work, "diff", "--binary", "HEAD~"))
    runner.write("distbench-measured/changes.md", "table\n")
    git(runner.work, "reset", "-q", "--hard", "HEAD~")
    return runner


def test_new_baselines_become_a_branch_and_a_pull_request_with_the_old_and_new_numbers(proposed: Runner) -> None:
    told, calls = proposed.run(PROPOSE, HOST="gpu-1")
    branch = "baselines/gpu-1-5-1"

    assert git(proposed.origin, "log", "-1", "--format=%s %an", branch).strip() == (
        "New baselines of gpu-1, measured in run 5 github-actions[bot]"
    )
    changed = git(proposed.origin, "diff", "--name-status", "--no-renames", "main", branch).split()
    assert changed == ["D", "baselines/a.json", "A", "baselines/b.json"]
    assert calls[-1][:7] == ["gh", "pr", "create", "--base", "main", "--head", branch]
    assert (proposed.temp / "body.md").read_text() == "table\n"
    assert "::error" not in told


def test_a_repository_that_lets_no_workflow_open_a_pull_request_is_told_where_that_is_set(proposed: Runner) -> None:
    told, _ = proposed.run(PROPOSE, 1, HOST="gpu-1", REFUSED="pr create")

    told = told[told.index("::") :]
    assert told.startswith("::error title=distbench::baselines/gpu-1-5-1 is pushed, and GitHub refused")
    assert "Allow GitHub Actions to create and approve pull requests" in told
    assert told.endswith("https://github.com/o/r/compare/main...baselines/gpu-1-5-1\n")


def test_who_measures_has_no_token_that_writes() -> None:
    """Nor one of unknown rights; and what writes runs on a machine of GitHub's."""
    ours = [yaml.load(path.read_text()) for path in GITHUB.glob("workflows/*.yml")]
    for file in [*ours, *(yaml.load(written_by_init(name)) for name in TEMPLATES)]:
        for job in file["jobs"].values():
            steps = job.get("steps", ())
            uses = "".join(step.get("uses", "") for step in steps)
            measures = (
                "/measure" in uses or "/record" in uses or any("pytest " in step.get("run", "") for step in steps)
            )
            if "write" in job.get("permissions", {"": "write"}).values() and "uses" not in job:
                assert not measures
                assert job["runs-on"] == "ubuntu-latest"


def test_no_measurement_of_the_default_branch_is_cancelled() -> None:
    """Nor does one that waits give way to a newer one: its group has no other run, or a queue."""
    texts = [*(path.read_text() for path in GITHUB.glob("workflows/*.yml")), *map(written_by_init, TEMPLATES)]
    found = {word for text in texts for word in re.findall(r"cancel-in-progress: (.*)", text)}

    of_a_pull_request = (
        "${{ github.event_name == 'pull_request' }}",
        "${{ startsWith(github.ref_name, 'pull-request/') }}",
    )
    assert found == {"false", *of_a_pull_request}
    assert {text.count("cancel-in-progress: false") - text.count("queue: max") for text in texts} == {0}
    assert all("|| github.run_id }}" in written_by_init(name) for name in ("hosted.yml.txt", "gpu.yml.txt"))


def test_nightly_runs_have_a_history_and_those_of_forks_do_not_start() -> None:
    """The event of a schedule need not say which branch is the default one, nor whether this is a fork."""
    texts = [*(path.read_text() for path in GITHUB.glob("workflows/*.yml")), *map(written_by_init, TEMPLATES)]

    assert not any("repository.fork" in text for text in texts)
    guard = "(github.event_name == 'schedule' || github.ref_name == github.event.repository.default_branch)"
    assert all(text.count("repository.default_branch") == text.count(guard) for text in texts)


def test_what_the_history_needs_is_installed() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["history"]
    jobs = yaml.load((GITHUB / "workflows" / "measure.yml").read_text())["jobs"]

    assert jobs["history"]["steps"][0]["with"]["install"].split() == extra


def test_what_is_there_to_paste_calls_workflows_and_actions_with_inputs_that_they_have() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    blocks = [yaml.load(textwrap.dedent(text)) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    calls = [row for block in blocks for row in (block["jobs"].values() if "jobs" in block else block)]
    used = [(re.findall(r"/\.github/(.*)@v", row["uses"]), row.get("with", {})) for row in calls if "uses" in row]

    assert {place for [place], _ in used} >= {f"workflows/{name}.yml" for name in ("measure", "baselines")}
    for [place], given in used:
        path = GITHUB / place
        file = yaml.load((path if path.is_file() else path / "action.yml").read_text())
        assert set(given) <= set(file["inputs"] if "inputs" in file else file["on"]["workflow_call"]["inputs"])


def test_a_tag_that_is_not_the_version_is_not_released(runner: Runner) -> None:
    made_by_make_dist(runner, "0.1.0")
    step = "workflows/release.yml/build/Is the tag their version?"
    runner.run(step, GITHUB_REF_NAME="v0.1.0")
    told, _ = runner.run(step, 1, GITHUB_REF_NAME="v0.2.0")

    assert "::error::the tag is v0.2.0, and dist/ has pytest_distbench-0.1.0.tar.gz: set the version" in told


def test_a_release_has_the_changes_of_its_version(runner: Runner) -> None:
    made_by_make_dist(runner, "0.2.0")
    _, [call] = runner.run("workflows/release.yml/notes/Publish the changes of this version", GITHUB_REF_NAME="v0.2.0")

    assert call[:5] == ["gh", "release", "create", "v0.2.0", "dist/pytest_distbench-0.2.0.tar.gz"]
    assert (runner.work / "notes.md").read_text() == "\n- faster\n\n### Fixed\n\n- a hang\n\n"
