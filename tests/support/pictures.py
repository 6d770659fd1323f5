"""Makes the pictures of the docs out of real runs: ``python tests/support/pictures.py``. It takes two minutes.

A repository as ``distbench init`` makes it is recorded, its training is slowed down, and the page of the run that finds
it is photographed; so is the page of a made-up history.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.store.run_record import write_run_record
from support.browser import Tab, browser, find_browser
from support.repositories import git
from support.results import result, run

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH = 1100
SLOWER = ("optimizer.step()\n", "optimizer.step()\n            torch.randn(2**16).sort()  # somebody's new check\n")


def main() -> None:
    """Make all of them."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as made, browser(find_browser() or "chromium") as tab:
        folder = Path(made)
        page = page_of_a_regression(folder)
        take(tab, page, "page", height=1560)
        take(tab, page, "page-dark", height=1560, dark=True)
        take(tab, page_of_a_history(folder), "history", height=900)


def page_of_a_regression(folder: Path) -> Path:
    """A first suite, recorded and committed; then its step does more."""
    repository = folder / "project"
    repository.mkdir()
    git(repository, "init", "-q")
    python = [sys.executable, "-m"]
    subprocess.run([*python, "pytest_distbench.commands.cli", "init"], cwd=repository, check=True)
    suite = [*python, "pytest", "suites", "--world-size", "2", "-q"]
    subprocess.run([*suite, "--distbench-update=new"], cwd=repository, check=True)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "A suite, and its baselines")
    step = repository / "suites" / "test_step.py"
    step.write_text(step.read_text().replace(*SLOWER))
    subprocess.run([*suite, "--distbench-report", "run.html"], cwd=repository, check=False)
    return repository / "run.html"


def page_of_a_history(folder: Path) -> Path:
    """Two hundred runs; a step that became slower in the 121st, and faster again in the 171st."""
    dice = random.Random(3)
    runs = folder / "runs"
    runs.mkdir()
    for i in range(200):
        step = 0.02 * dice.lognormvariate(0, 0.03) * (1.1 if i >= 120 else 1) * (0.8 if i >= 170 else 1)
        measured = [Measurement(name="step", unit="s", better="lower", value=step)]
        launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured)
        started = f"2026-{1 + i // 28:02}-{1 + i % 28:02}T00:00:00+00:00"
        commit = f"{dice.getrandbits(160):040x}"
        write_run_record(runs / f"{i}.json", run(result(launches=[launch]), started=started, commit=commit))
    command = [sys.executable, "-m", "pytest_distbench.commands.cli", "history", "runs", "--html", "history.html"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "history.html"


def take(tab: Tab, page: Path, name: str, *, height: int, dark: bool = False) -> None:
    """The top of a page."""
    tab.resize(WIDTH, height, dark=dark)
    tab.open(page)
    time.sleep(1)  # what is seen is drawn when it is seen
    tab.screenshot(PICTURES / f"{name}.png", whole=False)
    print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
