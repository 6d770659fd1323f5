"""The files of a launch: each name stands once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import pytest_distbench
from pytest_distbench.records import launch_files
from pytest_distbench.records.launch_files import LaunchFiles, open_left, sockets_folder, sockets_folders

FILES = LaunchFiles(Path("/launch1"))

NAME = re.compile(
    r"""plan\.json["']|/ ["']control["']|"""
    r"""rank\{[\w.]+\}\.(json|log)|(stacks|flight|groups)\{|launcher\.log|nccl-flight|["']sockets"""
)


def test_two_files_never_share_a_name() -> None:
    of_a_rank = [
        file(rank) for file in (FILES.report, FILES.log, FILES.stacks, FILES.flight, FILES.groups) for rank in (1, 11)
    ]
    of_all = [FILES.plan, FILES.control, FILES.sockets, FILES.launcher_log, FILES.torchrun_logs]

    assert len({*of_a_rank, *of_all}) == 15


def test_sessions_that_share_a_run_directory_have_sockets_of_their_own(tmp_path: Path) -> None:
    folders = [sockets_folder(tmp_path, session) for session in ("", "a" * 32, "b" * 32)]
    for folder in folders:
        folder.mkdir()

    assert sorted(sockets_folders(tmp_path)) == folders


def test_a_name_stands_in_no_other_module() -> None:
    modules = Path(pytest_distbench.__file__).parent.rglob("*.py")

    assert [path for path in modules if NAME.search(path.read_text())] == [Path(launch_files.__file__)]


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would block for ever, a device might never end."""
    os.mkfifo(tmp_path / "rank0.log")
    (tmp_path / "rank1.log").symlink_to("/dev/zero")
    (tmp_path / "rank2.log").write_text("words")

    for rank in (0, 1):
        with pytest.raises(OSError, match="no regular file"):
            open_left(tmp_path / f"rank{rank}.log")
    with open_left(tmp_path / "rank2.log") as file:
        assert file.read() == b"words"
