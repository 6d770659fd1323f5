"""The folder of a relay, and those that killed ones have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_distbench.launch.site.folder import relay_folder

LIVES = """
import sys
from pytest_distbench.launch.site.folder import relay_folder
with relay_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process with a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate()


def test_it_goes_when_it_is_left_and_what_is_no_folder_of_a_relay_stays(temporary: Path) -> None:
    with relay_folder() as folder:
        assert folder.parent == temporary
        (folder / "plan.json").write_text("secret")
    assert list(temporary.iterdir()) == []

    (temporary / "distbench-relay-mine").mkdir()
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "lock").write_text("")
    (temporary / "distbench-relay-link").symlink_to(temporary / "elsewhere")
    with relay_folder():
        pass
    assert sorted(path.name for path in temporary.iterdir()) == [
        "distbench-relay-link",
        "distbench-relay-mine",
        "elsewhere",
    ]


def test_that_of_a_relay_that_lives_stays_and_goes_when_the_next_begins_after_it_was_killed(temporary: Path) -> None:
    process, left = start(temporary)
    (left / "plan.json").write_text("secret")
    end(process, signal.SIGKILL)
    assert left.exists()
    with relay_folder() as folder:
        assert list(temporary.iterdir()) == [folder]

    process, other = start(temporary)
    with relay_folder():
        assert other.exists()
    end(process, signal.SIGTERM)
