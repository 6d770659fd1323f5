"""Build the sdist and the wheel, check them, and run the README's first test with the wheel alone: ``make dist``.

    python tests/wheel.py FOLDER [--empty]

FOLDER gets both files. The test runs in a folder of its own, with a Python that has the wheel and sees the packages of
this one; with ``--empty`` it has the wheel, what that requires, and the torch of this one, all freshly installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(folder: Path) -> Path:
    """The wheel, made from the sdist, which is made from what git knows.

    Raises:
        SystemExit: a file of the package is not in it, or one that git does not know; README and fields are refused.
    """
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    version = importlib.metadata.version("pytest-distbench")
    made = [folder / f"pytest_distbench-{version}{ending}" for ending in ("-py3-none-any.whl", ".tar.gz")]
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, made))
    known = run("git", "-C", str(ROOT), "ls-files", "pytest_distbench").split()
    held = [name for name in zipfile.ZipFile(made[0]).namelist() if ".dist-info/" not in name]
    if differ := sorted({*known} ^ {*held}):
        sys.exit(f"in the wheel or in git alone: {', '.join(differ)}")
    return made[0]


def try_it(wheel: Path, folder: Path, *, is_empty: bool) -> None:
    """Install the wheel and follow the README: record a baseline, and compare. SystemExit if a command fails."""
    readme = (ROOT / "README.md").read_text()
    [example] = re.findall(r"```python\n(# test_step\.py\n.*?)```", readme, re.DOTALL)
    commands = re.findall(r"^\$ (pytest test_step\.py .*?) *#", readme, re.MULTILINE)
    venv.create(folder / "venv")
    python = str(folder / "venv" / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(wheel)]
    if is_empty:
        run(*install, f"torch=={importlib.metadata.version('torch').partition('+')[0]}")
    else:
        run(*install, "--no-deps")
        [packages] = (folder / "venv").glob("lib/python*/site-packages")
        (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # behind the wheel
    where = run(python, "-c", "import pytest_distbench; print(pytest_distbench.__file__)", cwd=folder)
    if not Path(where.strip()).is_relative_to(folder):
        sys.exit(f"not the wheel is imported, but {where}")
    mine = folder / "mine"
    mine.mkdir()
    (mine / "test_step.py").write_text(example)
    run("git", "init", "--quiet", cwd=mine)
    for command in commands:
        print(run(python, "-m", *shlex.split(command), cwd=mine))
    if len(commands) != 2 or not list(mine.glob("baselines/**/*.json")):
        sys.exit(f"{commands} wrote no baseline into {sorted(mine.iterdir())}")


def run(*command: str, cwd: Path | None = None) -> str:
    """What a program prints; it ends this one if it fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    built = build(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as made_for_it:
        try_it(built, Path(made_for_it), is_empty="--empty" in sys.argv)
    print(f"{built.name}: runs the README's first test")
