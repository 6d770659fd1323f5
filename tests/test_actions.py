"""Every command of actions and workflows, ours and those that ``distbench init`` writes, run by bash as on a runner.

Programs are fakes that note their arguments, but git. What ``distbench ci`` does is tested in tools/test_ci.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
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
        (self.temp / "venv" / "bin").mkdir(parents=True)
        for name in ("distbench", "pip"):
            (self.temp / "venv" / "bin" / name).symlink_to(self._programs / name)
        for name in ("distbench", "gh", "make", "nvidia-smi", "pip", "pytest", "python3", "sudo", "uv"):
            self.fake(name, FAKE + ANSWERS.get(name, ""))
        git(self.work, "init", "-q", "-b", "main")
        self.commit("baselines/a.json", "old")
        git(folder, "clone", "-q", "--bare", str(self.work), str(self.origin))
        git(self.work, "remote", "add", "origin", str(self.origin))
        git(self.work, "fetch", "-q", "origin")
        self.variables = {
            "PATH": f"{self._programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CALLS": str(folder / "calls"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_REF_NAME": "main",
            "GITHUB_BASE_REF": "",
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
    """The programs know the words that they are given."""
    assert "${{" not in COMMANDS[name].text  # an expression in a script is code that somebody else may write
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
    _, [call] = runner.run(name, **({"BASE": old, "HEAD": head} if name == MEASURE else {"GITHUB_BASE_REF": "main"}))

    [against] = [word.partition("=")[2] for word in call if "--distbench-against" in word]
    assert git(runner.work, "rev-parse", against).strip() == base
    assert ("--distbench-advisory=timings" in call) == (name != MEASURE)


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


def test_what_comments_and_writes_the_history_is_installed_without_torch(runner: Runner) -> None:
    _, [_, ours, others] = runner.run("actions/install/Install", TORCH="", INSTALL="scipy")
    install = ["uv", "pip", "install", "--python", str(runner.temp / "distbench-venv")]

    assert ours == [*install, "--no-deps", f"{GITHUB}/actions/install/../../.."]
    assert others == [*install, "msgspec", "psutil", "filelock", "scipy"]


@pytest.mark.parametrize("name", ["hosted.yml.txt", "gpu.yml.txt"])
def test_a_team_owns_few_lines_and_no_script(name: str) -> None:
    texts = [written_by_init(name), written_by_init("record.yml.txt")]

    assert sum(text.count("\n") for text in texts) <= 120
    blocks = [
        step["run"]
        for text in texts
        for job in yaml.load(text)["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert max(block.count("\n") for block in blocks) <= 3


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
    found = {word for text in texts for word in re.findall(r"cancel-in-progress: (\$\{\{.*?\}\}|\w+)", text)}

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
