"""A git repository of tests whose pytest runs are started from outside: what is committed, and what differs from it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.files import read_run_record

ROOT = Path(__file__).resolve().parents[1]

PATIENCE_S = 30.0
"""That pytest is given to end after Ctrl-C."""


class Repository:
    """Its files are copied once; baselines are committed, so that what is doubtful can run in turns with them.

    Args:
        folder: that it is made in, which must not be there yet.
        sources: files and folders that it has at its top.
    """

    def __init__(self, folder: Path, sources: Sequence[Path]) -> None:
        self.folder = folder
        self.output = ""
        self._record = folder.with_name(f"{folder.name}.json")
        folder.mkdir()
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder)

    def commit(self, message: str) -> None:
        """Everything that lies there."""
        if not (self.folder / ".git").exists():
            self._git("init", "-q")
        self._git("add", "-A")
        self._git("-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "--allow-empty", "-m", message)

    def pytest(self, *options: str, prefix: Sequence[str] = ()) -> list[CaseResult]:
        """Run its tests on two ranks; what pytest printed is ``output`` then.

        Raises:
            SystemExit: they were not run.
        """
        command = [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--world-size", "2"]
        code, self.output = _call([*command, f"--distbench-json={self._record}", *options], self.folder)
        if code not in (0, 1):
            raise SystemExit(f"pytest ended with {code}:\n{self.output}")
        return read_run_record(self._record).results

    def keep_record(self, path: Path) -> None:
        """Of the last run, elsewhere."""
        shutil.copy(self._record, path)

    def _git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.folder, check=True)


def end_by_sigterm_too() -> None:
    """End as by Ctrl-C, so that no pytest is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _call(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command in a session of its own; whatever ends this program ends it too."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
    process = subprocess.Popen(
        command, cwd=folder, env=variables, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    return process.returncode, output
