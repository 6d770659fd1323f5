"""The private parts of Python that are used are there, in this Python too; what uses them tests what they do."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "forget_parents_exit()",
        "wait_for_threads()",
        "run_exit_handlers()",
        "place_sockets('/x'); import multiprocessing as m; assert m.util.get_temp_dir() == '/x'",
        "name_semaphores('/y'); import multiprocessing.synchronize as s; assert s.SemLock._make_name()[:3] == '/y-'",
        "import tempfile; assert isinstance(tempfile.NamedTemporaryFile(), TEMPORARY_FILE)",
    ],
)
def test_a_part_is_there(code: str) -> None:
    command = [sys.executable, "-c", f"from pytest_distbench.worker.python_internals import *\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
