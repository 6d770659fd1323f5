"""The private parts of Python that are used are there, in this Python too; what uses them tests what they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "forget_parents_exit()",
        "become_main_process(); import multiprocessing as m; assert m.parent_process() is None",
        "wait_for_threads()",
        "run_exit_handlers()",
        "let_helpers_end()",
        "assert forkserver_pid() is None",
        "place_sockets('/x', semaphores='/y'); import multiprocessing as m; assert m.util.get_temp_dir() == '/x'",
        "import tempfile; assert isinstance(tempfile.NamedTemporaryFile(), TEMPORARY_FILE)",
    ],
)
def test_a_part_is_there(code: str) -> None:
    command = [sys.executable, "-c", f"from pytest_distbench.worker.python_internals import *\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_forked_forkserver_has_what_was_imported_and_neither_our_files_nor_our_lock(tmp_path: Path) -> None:
    (tmp_path / "costly.py").write_text("""
import atexit, os

MADE_BY = os.getpid()
atexit.register(lambda: print("at the end of", "this" if os.getpid() == MADE_BY else "the forkserver", flush=True))
""")
    (tmp_path / "main.py").write_text("""
import multiprocessing, os, sys
from multiprocessing import util
from pytest_distbench.worker.python_internals import fork_forkserver, forkserver_pid, let_helpers_end

def links():
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(path) for path in paths if os.path.exists(path) or os.path.islink(path)}

def target(pipe, server, made_by):
    import costly
    from multiprocessing import forkserver
    print(os.getppid() == server, costly.MADE_BY == made_by)
    print(pipe in links(), forkserver._forkserver._lock.locked(), util.spawnv_passfds.__module__, flush=True)
    os._exit(5)

if __name__ == "__main__":
    import costly
    pipe = os.pipe()
    fork_forkserver(close=pipe)
    known = os.readlink(f"/proc/self/fd/{pipe[0]}"), forkserver_pid(), os.getpid()
    child = multiprocessing.get_context("forkserver").Process(target=target, args=known)
    child.start()
    child.join()
    print(child.exitcode, flush=True)
    let_helpers_end()
    os.waitpid(forkserver_pid(), 0)
""")
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)

    ends = ["at the end of the forkserver", "at the end of this"]
    assert done.stdout.splitlines() == ["True True", "False False multiprocessing.util", "5", *ends], done.stderr


def test_a_child_ends_with_what_it_was_told_before_it_waits_for_its_threads(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("""
import multiprocessing, os, threading, time
from pytest_distbench.worker.python_internals import end_with, wait_for_threads

def end():
    print("ends", threading.active_count(), flush=True)
    wait_for_threads()
    print("has waited", flush=True)
    os._exit(5)

def target():
    threading.Thread(target=time.sleep, args=(0.3,)).start()
    end_with(end)

if __name__ == "__main__":
    child = multiprocessing.get_context("forkserver").Process(target=target)
    child.start()
    child.join()
    print(child.exitcode)
""")
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == ["ends 2", "has waited", "5"], done.stderr
