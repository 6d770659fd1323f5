"""The process that others are forked from, as its owner sees it, and as the launcher of nodes does."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from pytest_distbench.errors import LauncherError
from pytest_distbench.hosts import slurm
from pytest_distbench.hosts.slurm import RELAY, NodeParent
from pytest_distbench.launch.starters.parent import Order, Word
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
def test_a_parent_forks_tells_of_ends_and_leaves_nothing_of_whoever_has_ended(tmp_path: Path) -> None:
    """In a process of its own, which has one thread."""
    (tmp_path / "costly.py").write_text("""
import atexit, os

MADE_BY = os.getpid()
atexit.register(lambda: print("at the end of the parent", flush=True))
""")
    (tmp_path / "owner.py").write_text(OWNER)
    done = subprocess.run(
        [sys.executable, "-u", "owner.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.stdout.splitlines() == [
        "[3, 4]", "True", "True True", "-9", "[]", "at the end of the parent", "False",
    ], done.stderr  # fmt: skip


class MadeUpStep:
    pid = 7
    is_alive = True
    where = ("4711", "127.0.0.1")


class TheirEnd:
    """A node's parent that is made up."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line

    def heard(self) -> list[Order]:
        return [msgspec.json.decode(line, type=Order) for line in self.line.recv(4096).splitlines()]

    def say(self, word: Word) -> None:
        self.line.sendall(msgspec.json.encode(word) + b"\n")


@pytest.fixture
def ends() -> Iterator[tuple[NodeParent, TheirEnd]]:
    """Ours, which has been asked for a relay, and the parent's."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        node, there = NodeParent(ours, cast(Any, MadeUpStep())), TheirEnd(theirs)
        assert node.is_idle
        node.begin_fork(RELAY, *node.step.where)
        assert there.heard() == [Order(what="fork", entry=RELAY, arguments=["4711", "127.0.0.1"], each=[{}])]
        there.say(Word(what="forked", pids=[42]))
        node.take_relay()
        yield node, there


def test_it_can_fork_a_relay_when_the_one_before_has_gone(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    assert not node.is_idle
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(0.01)

    there.say(Word(what="ended", pids=[42]))
    assert node.wait(10) == 0
    assert node.is_idle
    assert node.wait(0.01) == 0  # nothing is waited for twice


def test_a_relay_that_does_not_end_is_ended_by_its_parent_which_stays(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    there.say(Word(what="ended", pids=[42], code=-9))
    node.kill()

    assert there.heard() == [Order(what="kill", pid=42)]
    assert node.is_idle


def test_a_parent_that_does_not_even_end_its_relay_is_hung_up_on(
    ends: tuple[NodeParent, TheirEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_END_S", 0.01)
    node, there = ends
    node.kill()

    assert there.heard() == [Order(what="kill", pid=42)]
    assert there.line.recv(9) == b""
    assert not node.is_idle
    assert node.wait(0.01) == 0


def test_a_parent_that_has_gone_is_not_idle_and_not_waited_for(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    there.line.close()

    assert node.wait(10) == 0
    assert not node.is_idle


def test_a_child_that_could_not_be_forked_is_told(ends: tuple[NodeParent, TheirEnd]) -> None:
    node, there = ends
    there.say(Word(what="forked", trouble="BlockingIOError: [Errno 11] Resource temporarily unavailable"))

    with pytest.raises(LauncherError, match="BlockingIOError"):
        node.fork("a:b")


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
