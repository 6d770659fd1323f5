"""The process that others are forked from, as its owner sees it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_distbench.records.launch_files import LaunchFiles

OWNER = """
import os, sys
from pathlib import Path
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters.parent import Order, fork_parent

def fork(text, **options):
    return parent.fork("builtins:exec", text, **options)

parent = fork_parent("run", [], ["costly"])
import costly
exits = "import costly, os; os._exit(int(os.environ['CODE']) + (costly.MADE_BY == os.getpid()))"
print([parent.code_of(pid, 60) for pid in fork(exits, each=[{"CODE": "3"}, {"CODE": "4"}])])

os.mkdir("own")
stale = "import os, tempfile; os._exit(tempfile.gettempdir() != os.environ['TMPDIR'])"
[child] = fork(stale, each=[{"TMPDIR": os.path.abspath("own")}])
print(parent.code_of(child, 60) == 0)

[orphan_s] = fork("import os, time; os.fork() or time.sleep(1000); os._exit(0)")
parent.code_of(orphan_s, 60)
[below] = fork("import subprocess, sys; subprocess.Popen(['sleep', '1000'], start_new_session=True)")
parent.code_of(below, 60)
print([p.name() for p in processes.family([parent.pid])] == [processes.family([os.getpid()])[0].name()])

Path("asks.py").write_text('''
import socket, time
from pytest_distbench.launch.starters.parent import Parent
def run(text, descriptor):
    parent = Parent(socket.socket(fileno=descriptor), 0)
    [child] = parent.fork("builtins:exec", text)
    open("asked", "w").close()
    parent.code_of(child, None)
''')
[client] = parent.fork("asks:run", "import time; time.sleep(1000)", has_line=True)
while not os.path.exists("asked"):
    pass
agent, worker = parent.count(client)
print(agent == client, processes.is_alive(worker))
parent.send(Order(what="kill", pid=client))
print(parent.code_of(client, 60))
while processes.is_alive(worker):
    pass
print(parent.count(client))
parent.end()
print(processes.is_alive(parent.pid), flush=True)
os._exit(0)
"""


@pytest.mark.spawn
def test_a_parent_forks_and_reports_ends_and_leaves_no_process(tmp_path: Path) -> None:
    """Runs in its own process, which has one thread."""
    (tmp_path / "costly.py").write_text("""
import atexit, os, tempfile

MADE_BY = os.getpid()
tempfile.gettempdir()
atexit.register(lambda: print("at the end of the parent", flush=True))
""")
    (tmp_path / "owner.py").write_text(OWNER)
    done = subprocess.run(
        [sys.executable, "-u", "owner.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.stdout.splitlines() == [
        "[3, 4]", "True", "True", "True True", "-9", "[]", "at the end of the parent", "False",
    ], done.stderr  # fmt: skip


@pytest.mark.spawn
def test_an_owner_that_dies_while_torch_is_loaded_leaves_no_socket_and_no_plan(tmp_path: Path) -> None:
    launch = LaunchFiles(tmp_path / "launch1")
    launch.directory.mkdir()
    launch.plan.write_text("secrets")
    ours, its = socket.socketpair()
    stores, its_stores = socket.socketpair()
    with its, its_stores, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(launch.control))
        start = f"main({its.fileno()}, {its_stores.fileno()}, {str(tmp_path)!r}, [])"
        process = subprocess.Popen(
            [sys.executable, "-c", f"from pytest_distbench.launch.starters.warm import main; {start}"],
            pass_fds=[its.fileno(), its_stores.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    ours.close()
    stores.close()
    _, said = process.communicate(timeout=120)

    assert said == ""
    assert not list(launch.directory.iterdir())


TWO_ORDERS = """
import os
from pathlib import Path
from pytest_distbench.launch.starters import parent

parent.TRAINING[:] = ["slow"]
made = parent.fork_parent("run", [], [])
code = "import os, sys; os._exit('slow' in sys.modules)"
made.begin_fork("builtins:exec", code)
made.begin_fork("builtins:exec", code, trains=True)
while not os.path.exists("importing"):
    pass
made.begin_fork("builtins:exec", code)
made.begin_fork("builtins:exec", code, trains=True)
Path("go on").touch()
pids = []
while len(pids) < 4:
    pids += [pid for word in made.take(60) if word.what == "forked" for pid in word.pids]
print([made.code_of(pid, 60) for pid in pids], Path("importing").read_text().split() == [str(made.pid)], flush=True)
made.end()
os._exit(0)
"""


@pytest.mark.spawn
def test_orders_that_come_while_a_parent_imports_wait_and_what_trains_is_imported_once(tmp_path: Path) -> None:
    """Runs in its own process, which has one thread."""
    (tmp_path / "slow.py").write_text("""
import os

with open("importing", "a") as file:
    print(os.getpid(), file=file)
while not os.path.exists("go on"):
    pass
""")
    (tmp_path / "owner.py").write_text(TWO_ORDERS)
    done = subprocess.run(
        [sys.executable, "-u", "owner.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.stdout == "[0, 1, 1, 1] True\n", done.stderr
