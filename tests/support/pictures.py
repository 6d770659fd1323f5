"""Make the pictures of the docs from real runs: ``python tests/support/pictures.py``. It takes two minutes.

A repository as ``distbench init`` makes it is recorded, its training is slowed down, and the HTML report that finds it
is photographed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.browser import Tab, browser, find_browser
from support.repositories import git

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH = 1100
SLOWER = ("optimizer.step()\n", "optimizer.step()\n            torch.randn(2**16).sort()  # somebody's new check\n")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as made, browser(find_browser() or "chromium") as tab:
        folder = Path(made)
        page = page_of_a_regression(folder)
        take(tab, page, "page", height=1560)
        take(tab, page, "page-dark", height=1560, dark=True)


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
    if subprocess.run([*suite, "--distbench-report", "run.html"], cwd=repository, check=False).returncode != 1:
        raise SystemExit("the slower step did not fail: try again on a quieter machine")
    return repository / "run.html"


def take(tab: Tab, page: Path, name: str, *, height: int, dark: bool = False) -> None:
    """The top of a page."""
    tab.resize(WIDTH, height, dark=dark)
    tab.open(page)
    time.sleep(1)  # what is seen is drawn when it is seen
    tab.screenshot(PICTURES / f"{name}.png", whole=False)
    print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
