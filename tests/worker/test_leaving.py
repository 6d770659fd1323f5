"""A rank's end: threads and exit handlers run as in any Python process, and what does not end is named and ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_for

pytestmark = pytest.mark.spawn

PRELUDE = """
import atexit, os, sys, tempfile, threading, time, weakref
from concurrent.futures import ThreadPoolExecutor
from pytest_distbench.worker import leaving, python_internals

leaving.LEAVING_S = {limit_s}

def leave():
    leaving.leave(lambda what: print("told:", what, flush=True))
    print("left", flush=True)
    os._exit(0)
"""


def run(code: str, *, limit_s: float = 60.0) -> list[str]:
    command = [sys.executable, "-c", PRELUDE.format(limit_s=limit_s) + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_threads_are_waited_for_and_handlers_run() -> None:
    """Each in a process of its own, which torch is loaded for once."""
    said = {
        "atexit.register(print, 'first'); atexit.register(print, 'last')": ["last", "first"],
        "atexit.register(lambda: 1 / 0); atexit.register(print, 'a')": ["a"],
        "atexit.register(sys.exit, 3); atexit.register(print, 'a')": ["a"],
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()": ["thread"],
        "ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.3), print('future')))": ["future"],
        "d = tempfile.TemporaryDirectory(); atexit.register(lambda: print(os.path.exists(d.name)))": ["True"],
    }
    each = f"for code in {list(said)}:\n    if os.fork() == 0:\n        exec(code)\n        leave()\n    os.wait()"

    assert run(each) == [line for lines in said.values() for line in (*lines, "left")]


def test_what_goes_on_at_the_end_is_named_and_ended() -> None:
    (told,) = run("threading.Thread(target=time.sleep, args=(1000,), name='poll').start()\nleave()", limit_s=0.5)
    assert told == "told: threads it had started still ran (poll) after 0 s, and were ended"

    (told,) = run("def slow():\n    time.sleep(1000)\natexit.register(slow)\nleave()", limit_s=0.5)
    assert told.startswith("told: its exit handlers were not done")


def test_a_forked_process_leaves_its_parents_handlers_and_folders_to_the_parent() -> None:
    lines = run("""
folder = tempfile.TemporaryDirectory()
atexit.register(print, "the parent's")
if os.fork() == 0:
    python_internals.forget_parents_exit()
    own = tempfile.TemporaryDirectory()
    atexit.register(lambda: print(os.path.exists(folder.name), os.path.exists(own.name)))
    print(own.name)
    leave()
os.wait()
print(os.path.exists(folder.name), flush=True)
leave()
""")

    assert lines[1:] == ["True True", "left", "True", "the parent's", "left"]


def test_shared_memory_goes_with_the_process_that_made_it() -> None:
    name, _, _ = run("""
from multiprocessing import resource_tracker, shared_memory
resource_tracker.ensure_running()
if os.fork() == 0:
    python_internals.forget_parents_exit()
    print(shared_memory.SharedMemory(create=True, size=100).name)
    leave()
os.wait()
leave()
""")

    wait_for(lambda: not Path("/dev/shm", name).exists())


def test_files_that_modules_hold_are_written_and_their_temporary_ones_go(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import tempfile

class Lazy:
    @property
    def __class__(self):
        raise RuntimeError("it was asked")

LAZY = Lazy()
DATA = [(i, str(i)) for i in range(2_000_000)]

class Log:
    def __init__(self):
        self.files = {"b": open("b.txt", "w")}

log = open("a.txt", "w")
log.write("a")
LOG = Log()
LOG.files["b"].write("b")
named = tempfile.NamedTemporaryFile(dir=".")
""")
    assert run(f"os.chdir({str(tmp_path)!r}); sys.path.insert(0, ''); import mine\nleave()") == ["left"]

    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.txt", "b.txt", "mine.py"]
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["a", "b"]


def test_a_file_that_was_open_before_the_rank_began_is_not_the_rank_s(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        PRELUDE.format(limit_s=60)
        + """
import gc
before = open("a.txt", "w")
before.write("a")
gc.freeze()
own = open("b.txt", "w")
own.write("b")
leave()
"""
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=120)

    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["", "b"]
