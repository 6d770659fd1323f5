"""The workflows that ``distbench init`` writes, their commands run in a fresh repository as on a runner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.processes import LIMIT_S
from support.repositories import git

from pytest_distbench.commands.cli import main
from pytest_distbench.store.baselines import read_file
from pytest_distbench.tools import init

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(4 * LIMIT_S)]

COUNTED = """
import os


def count(rank):
    rank.record("tokens", 3.0, better="exact")


def test_train(distbench):
    distbench.run(count)


def test_that_may_be_broken(distbench):
    assert "BROKEN" not in os.environ
"""


AGREES = """
def agree(rank):
    import torch
    import torch.distributed as dist

    for _ in rank.timed("step", warmup=1, iterations=3):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == rank.world_size


def test_agree(distbench):
    distbench.run(agree)
"""


class Runner:
    """A machine of GitHub's: each job begins with a clone of one branch, and has files of its own."""

    def __init__(self, folder: Path, origin: Path) -> None:
        self._folder, self._origin = folder, origin
        self.temp = self.tree = folder

    def begin(self, branch: str, name: str) -> None:
        self.temp, self.tree = self._folder / f"temp-{name}", self._folder / name
        (self.temp / "venv").mkdir(parents=True)
        (self.temp / "venv" / "bin").symlink_to(Path(sys.executable).parent)
        git(self._folder, "clone", "-q", "-b", branch, str(self._origin), str(self.tree))

    def run(self, file: str, job: str, name: str, **variables: str) -> int:
        steps: list[dict[str, Any]] = YAML(typ="safe").load((self.tree / f".github/workflows/{file}.yml").read_text())[
            "jobs"
        ][job]["steps"]
        [script] = [step["run"] for step in steps if step.get("name", "").startswith(name)]
        own = {
            "PATH": os.pathsep.join([str(self._folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_RUN_ID": "5",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_REF_NAME": "main",
            "GITHUB_BASE_REF": "",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "o/r",
            **{f"GITHUB_{name}": str(self.temp / name.lower()) for name in ("OUTPUT", "STEP_SUMMARY")},
        }
        command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=self.tree, env={**os.environ, **own, **variables}, check=False).returncode


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, and the working directory."""
    folder = tmp_path / "made"
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "gh").chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


def commit(folder: Path) -> Runner:
    """A repository on GitHub, with what is in a folder."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    origin = folder.parent / "origin"
    git(folder.parent, "clone", "-q", "--bare", str(folder), str(origin))
    return Runner(folder.parent, origin)


def test_the_gate_is_red_for_an_added_collective_and_green_for_what_adds_none(
    made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (made / "suites").mkdir()
    (made / "suites/test_agree.py").write_text(AGREES)
    assert main(["init"]) == 0
    [stored] = (made / "baselines").rglob("*.json")
    runner = commit(made)
    runner.begin("main", "gate")
    suite, stored = runner.tree / "suites/test_step.py", runner.tree / stored.relative_to(made)

    suite.write_text(suite.read_text().replace("layers", "parts"))
    stored.write_text(re.sub('("torch": )".*"', r'\1"2.0.1"', stored.read_text()))
    assert runner.run("distbench", "gate", "Compare") == 0
    assert "not run: needs values, and the backend fake has none" in capfd.readouterr().out

    suite.write_text(suite.read_text().replace("loss.backward()", "loss.backward(); torch.distributed.barrier()"))
    assert runner.run("distbench", "gate", "Compare") == 1
    assert "barrier was added" in capfd.readouterr().out


def the_first_test_that_init_writes(text: str) -> str:
    return text.partition("def test_all_reduce")[0]


@pytest.mark.parametrize(
    ("suite_of", "change", "metric"),
    [
        pytest.param(lambda _: COUNTED, ("3.0", "4.0"), "tokens", id="short"),
        pytest.param(
            the_first_test_that_init_writes,
            ("lr=3e-3", "lr=6e-3"),
            "loss_curve",
            id="whole",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_baselines_come_from_a_workflow_and_from_what_another_one_kept(
    made: Path, monkeypatch: pytest.MonkeyPatch, suite_of: Any, change: tuple[str, str], metric: str
) -> None:
    monkeypatch.setattr(init, "record", lambda folder, gate: True)
    assert main(["init"]) == 0
    suite = made / "suites/test_step.py"
    suite.write_text(suite_of(suite.read_text()))
    runner = commit(made)

    runner.begin("main", "record")
    is_broken = "BROKEN" in suite.read_text()
    broken = {"BROKEN": "1"} if is_broken else {}
    given = {"UPDATE": "changed", "SELECT": "", "OUT": str(runner.temp / "distbench-out"), **broken}
    code = runner.run("distbench-baselines", "record", "Measure", **given)
    assert code == int(is_broken)
    assert runner.run("distbench-baselines", "record", "What changed") == 0
    assert (runner.temp / "output").read_text() == "recorded=true\n"
    assert ("test_that_may_be_broken" in (runner.temp / "step_summary").read_text()) == is_broken
    kept = runner.temp / "distbench-out"

    runner.begin("main", "propose")
    kept.rename(runner.temp / "distbench-measured")
    assert runner.run("distbench-baselines", "propose", "Push", HOST="gpu") == 0

    runner.begin("baselines/gpu-5-1", "measure")
    [path] = (runner.tree / "baselines").rglob("*.json")
    stored = read_file(path).entry
    suite = runner.tree / "suites/test_step.py"
    suite.write_text(suite.read_text().replace(*change))
    git(runner.tree, "commit", "--quiet", "--all", "--message", "a change that is meant")
    assert runner.run("distbench", "suites", "Measure", GITHUB_BASE_REF="main") == 1
    assert runner.run("distbench", "suites", "Measure") == 1
    kept = runner.temp / "distbench-out"
    (runner.temp / "distbench-measured").symlink_to(kept)
    assert runner.run("distbench", "publish", "Comment", GITHUB_REF="refs/pull/7/merge") == 0
    assert "1 of 1 case failed" in (runner.temp / "body.md").read_text()
    assert git(runner.tree, "status", "--porcelain") == ""  # what a run leaves is ignored, or is outside of the tree
    monkeypatch.chdir(runner.tree)
    assert main(["baseline", "accept", str(kept / "run.json"), "--only", "failed"]) == 0
    taken = read_file(path).entry
    assert taken.metrics[metric] != stored.metrics[metric]
    assert taken.metrics.get("step") == stored.metrics.get("step")
    git(runner.tree, "commit", "--quiet", "--all", "--message", "its baselines")
    assert runner.run("distbench", "suites", "Measure") == 0
