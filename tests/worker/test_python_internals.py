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
        "let_helpers_end()",
        "assert forkserver_pid() is None",
        "place_sockets('/x', semaphores='/y'); import multiprocessing as m; assert m.util.get_temp_dir() == '/x'",
        "import tempfile; assert isinstance(tempfile.NamedTemporaryFile(), TEMPORARY_FILE)",
        "import threading; assert WAITING_FOR_THREADS.co_name == '_shutdown'",
    ],
)
def test_a_part_is_there(code: str) -> None:
    command = [sys.executable, "-c", f"from pytest_distbench.worker.python_internals import *\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
