"""The workflow that ``distbench init`` writes, its commands run in a fresh repository as on a runner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support.processes import LIMIT_S
from support.repositories import git

from pytest_distbench.commands.cli import main
from pytest_distbench.store.baselines import read_file

pytestmark = [pytest.mark.spawn, pytest.mark.nightly, pytest.mark.timeout(4 * LIMIT_S)]


def on_a_runner(folder: Path) -> int:
    """Run the steps that measure and propose; says what the first returned."""
    steps = YAML(typ="safe").load((folder / ".github/workflows/distbench.yml").read_text())["jobs"]["suites"]["steps"]
    shutil.rmtree(folder / "out", ignore_errors=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    codes = []
    for name in ("Measure", "Propose"):
        [script] = [step["run"] for step in steps if step.get("name", "").startswith(name)]
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path, "BASE": "", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""},
            check=False,
        )
        codes.append(done.returncode)
    assert codes[1] == 0
    return codes[0]


def take_proposed(folder: Path) -> None:
    shutil.copytree(folder / "out/baselines.proposed", folder / "baselines", dirs_exist_ok=True)
    commit(folder)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")


def test_baselines_come_from_its_runs_new_ones_and_those_of_a_change_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text("out/\n.*cache/\n__pycache__/\n.distbench/\n")
    monkeypatch.chdir(folder)
    assert main(["init"]) == 0
    suite = folder / "suites/test_step.py"
    suite.write_text(suite.read_text().partition("def test_all_reduce")[0])
    commit(folder)

    assert on_a_runner(folder) == 0
    take_proposed(folder)
    [path] = (folder / "baselines").rglob("*.json")
    stored = read_file(path).entry
    assert len(stored.metrics["step"].launches) >= 5

    suite.write_text(suite.read_text().replace("lr=3e-3", "lr=6e-3"))
    commit(folder)
    assert on_a_runner(folder) == 1
    assert main(["baseline", "accept", "out/run.json", "--only", "failed"]) == 0
    taken = read_file(path).entry
    assert taken.metrics["loss_curve"] != stored.metrics["loss_curve"]
    assert taken.metrics["step"] == stored.metrics["step"]
    assert read_file(next((folder / "out/baselines.proposed").rglob("*.json"))).entry == taken
    commit(folder)
    capfd.readouterr()
    assert on_a_runner(folder) == 0, capfd.readouterr().out
