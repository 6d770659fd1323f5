"""The process with torch loaded that ranks are forked from, and the protocol between it and its owner.

It has one thread, as a fork needs, and forks what it is ordered to: ranks, a node's relays, an elastic job's agents and
workers. It exchanges JSON lines over a socket with its owner, and with children that have children of their own. When a
connection closes, all processes that were forked for it end; with the owner's connection, everything ends.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import math
import os
import re
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.processes import adopt_orphans
from pytest_distbench.records.record import Record
from pytest_distbench.records.wire import Lines
from pytest_distbench.worker import forked
from pytest_distbench.worker.forked import name_semaphores, open_descriptors, run_exit_handlers, wait_for_threads

_WORKER = "pytest_distbench.worker.main"  # named, not imported: this module does without torch
PRELOAD = [
    "torch",
    "torch.distributed",
    "numpy.random",
    "psutil",
    "pytest",
    _WORKER,
    "pytest_distbench.launch.starters.loopback",
]
"""Modules imported once, before the first fork."""
TRAINING = ["torch.nn.parallel.distributed", "torch.optim", "torch._dynamo"]
"""Modules imported once, before the first fork of ranks that train: an optimizer's first step imports the last, for
seconds."""

RANK = f"{_WORKER}:run_forked_rank"  # what a rank runs

_READ_AT_START = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|LD|PYTHON|TORCH|PYTORCH|ATEN|DNNL|ONEDNN|MALLOC|CUDA|NCCL|GLOO)_?\w*|PATH"
)

_SET_HERE = frozenset({"OMP_NUM_THREADS", "PYTHONPATH", "TORCH_EXTENSIONS_DIR"})
"""Variables set in each rank, so that another value needs no new parent. The parent has its own OMP_NUM_THREADS; the
two sides of an A/B differ in their paths, which nothing reads there."""

_HASH_SEED = "PYTHONHASHSEED"
_HANDLERS_S = 3  # for exit handlers of a project's modules
_READ_BYTES = 65536
_NO_PROCESS = "; no process or thread could be started: see ulimit -u and the container's limit of processes (pids.max)"


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that libraries read when loaded: a change needs a new parent process."""
    return {k: v for k, v in variables.items() if _READ_AT_START.fullmatch(k) and k not in _SET_HERE}


def variables_of_parent(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment of a process that ranks are forked from; ranks get their own.

    Python's hash seed is the parent's: a random one would repeat in all launches of a run, and differ between runs.
    """
    return {_HASH_SEED: "1", **variables, "OMP_NUM_THREADS": "1"}


class Order(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An order to a parent, one line of JSON.

    ``fork`` children that call a function, each with its own variables, and maybe a connection for children of its own
    as its last argument. If they may train, the parent first imports what each would. ``count``: answer with the
    process ids of a child and of the children that it has by a connection. ``kill`` a child and its descendants.
    ``end`` everything, without removing files of the run. ``make`` and ``drop`` the store of a launch, for its keeper.
    """

    what: Literal["fork", "count", "kill", "end", "make", "drop"]
    function: str = ""
    arguments: list[str] = []
    each: list[dict[str, str]] = []
    has_line: bool = False
    trains: bool = False
    pid: int = 0


class Word(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A message from a parent, one line of JSON.

    ``forked`` answers the orders ``fork`` and ``count``: ``pids``, or in ``trouble`` why there are none. ``ended``: a
    child ended with ``code``; after the last one, also all processes that it had started. ``ready``: torch is loaded;
    ``pids`` keep stores. ``made``: a store listens at ``port``, or ``trouble`` says why not.
    """

    what: Literal["forked", "ended", "ready", "made"]
    pids: list[int] = []
    trouble: str = ""
    code: int = 0
    port: int = 0
    backends: dict[str, bool] = {}


kept: set[int] = set()  # descriptors that children have too


def fork(function: str, arguments: Sequence[str | int], variables: Mapping[str, str], *own: int) -> int:
    """Fork a process that calls a function, with no open descriptors but :data:`kept` and its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in open_descriptors().difference(kept, own):
            os.close(descriptor)
        os.environ.update(variables)
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
    except BaseException:  # noqa: BLE001 it must not come back into the code of the process it was forked from
        traceback.print_exc()
    finally:
        os._exit(1)


class _Client:
    """A process that orders children over a connection, with its live children: process id -> pidfd."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.lines = Lines()
        self.children: dict[int, int] = {}

    def say(self, **word: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone: its connection closes
            self.line.sendall(msgspec.json.encode(Word(**word)) + b"\n")


class _Server:
    def __init__(self, line: socket.socket, keeper: int, on_death: Callable[[], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._on_death = on_death
        self._owner = self._add(line)
        self._clients: dict[int, _Client] = {}  # by process id, those that are children
        if keeper:  # a child that was forked before: the owner is notified of its end, too
            self._watch(self._owner, keeper)

    def serve(self) -> NoReturn:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        self._take_ends()
                    elif key.data.line.fileno() >= 0:  # not hung up on a moment ago
                        self._hear(key.data)
        finally:
            processes.kill_descendants()

    def _add(self, line: socket.socket) -> _Client:
        client = _Client(line)
        self._selector.register(line, selectors.EVENT_READ, client)
        return client

    def _watch(self, client: _Client, pid: int) -> None:
        handle = client.children[pid] = os.pidfd_open(pid)
        self._selector.register(handle, selectors.EVENT_READ)

    def _hear(self, client: _Client) -> None:
        try:
            data = client.line.recv(_READ_BYTES)
        except OSError:  # a network that has parted, too
            data = b""
        if not data:
            if client is self._owner:
                self._end(owner_died=True)
            self._selector.unregister(client.line)
            client.line.close()
            processes.kill(processes.family(client.children))
            self._take_ends()
            self._clients = {pid: other for pid, other in self._clients.items() if other is not client}
        for line in client.lines.take(data):
            order = msgspec.json.decode(line, type=Order)
            match order.what:
                case "fork":
                    self._fork(client, order)
                case "kill" if order.pid in client.children:
                    processes.kill(processes.family([order.pid]))
                case "count":
                    below = self._clients[order.pid].children if order.pid in self._clients else ()
                    client.say(what="forked", pids=[order.pid, *below] if order.pid in client.children else [])
                case "end":
                    self._end()

    def _fork(self, client: _Client, order: Order) -> None:
        pids: list[int] = []
        trouble = ""
        if order.trains and TRAINING[-1] not in sys.modules:
            gc.disable()
            _import(TRAINING)
            gc.freeze()
            gc.enable()
        try:
            for variables in order.each:
                if order.has_line:
                    ours, theirs = socket.socketpair()
                    with theirs:
                        pid = fork(order.function, [*order.arguments, theirs.fileno()], variables, theirs.fileno())
                    self._clients[pid] = self._add(ours)
                else:
                    pid = fork(order.function, order.arguments, variables)
                self._watch(client, pid)
                pids.append(pid)
        except OSError as error:
            trouble = f"{type(error).__name__}: {error}{_NO_PROCESS if error.errno == errno.EAGAIN else ''}"
        client.say(what="forked", pids=pids, trouble=trouble)

    def _take_ends(self) -> None:
        """Report children that have ended. Processes that outlive the last one belong to nobody, and are ended."""
        clients = [self._owner, *self._clients.values()]
        codes = {}
        is_any_left = True
        try:
            while (found_one := os.waitpid(-1, os.WNOHANG))[0]:
                codes[found_one[0]] = os.waitstatus_to_exitcode(found_one[1])
        except ChildProcessError:
            is_any_left = False
        found = [(client, pid) for client in clients for pid in client.children.keys() & codes.keys()]
        for client, pid in found:
            handle = client.children.pop(pid)
            self._selector.unregister(handle)
            os.close(handle)
        if is_any_left and not any(client.children for client in clients):
            processes.kill_descendants()
        for client, pid in found:
            client.say(what="ended", pids=[pid], code=codes[pid])

    def _end(self, *, owner_died: bool = False) -> NoReturn:
        processes.kill_descendants()
        if owner_died:
            self._on_death()
        signal.alarm(_HANDLERS_S)
        with contextlib.suppress(BaseException):  # Python prints it and goes on to its end, too
            wait_for_threads()
        with contextlib.suppress(BaseException):
            run_exit_handlers()
        os._exit(0)


def load(run: str, projects: Sequence[str], names: Sequence[str] = PRELOAD) -> None:
    """Import the modules that children need; none of them uses CUDA, which no fork could use afterwards.

    Children's semaphores are named after the run's folder, so that a later run finds them.
    """
    name_semaphores(f"/{run}")
    os.environ[forked.NVML_CHECK] = "1"
    gc.disable()  # going through torch's objects again and again, while they become more, is a fifth of its import
    _import(names)
    forked.load(projects)
    with contextlib.suppress(Exception):  # each rank looks it up by itself then, and says what is wrong
        importlib.import_module(_WORKER).prepare()
    gc.freeze()
    gc.enable()


def _import(names: Iterable[str]) -> None:
    folder = tempfile.tempdir
    for name in names:
        with contextlib.suppress(ImportError):  # a rank that needs it says so
            importlib.import_module(name)
    tempfile.tempdir = folder  # torch._dynamo has Python look it up and keep it; ranks have a TMPDIR of their own


def serve(line: socket.socket, *, keeper: int = 0, on_death: Callable[[], None] = lambda: None) -> NoReturn:
    """Fork what the owner of the connection orders. Children keep what is open now, except the connection."""
    kept.update(open_descriptors() - {line.fileno()})
    line.set_inheritable(False)
    adopt_orphans()
    _Server(line, keeper, on_death).serve()


def fork_parent(run: str, projects: Sequence[str], names: Sequence[str]) -> Parent:
    """Fork a parent from this process, which must have one thread."""
    load(run, projects, names)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            serve(theirs)
        except BaseException:  # noqa: BLE001 it must not come back into the code of the process it was forked from
            traceback.print_exc()
        finally:
            os._exit(1)
    theirs.close()
    return Parent(ours, pid)


_END_S = 3.0
_ANSWER_S = 60.0  # for a fork, of milliseconds: one that was stopped never answers


class SilentParent(LauncherError):
    """A parent is alive and does not answer."""


class Parent:
    """The connection to a parent; ``ended``: exit codes of children so far, by process id."""

    def __init__(self, line: socket.socket, pid: int, *, gone: str = "it is gone") -> None:
        self.line = line
        self.pid = pid
        self.gone = gone
        self.ended: dict[int, int] = {}
        self._lines = Lines()

    def fileno(self) -> int:
        return self.line.fileno()

    def send(self, order: Order) -> None:
        """Send an order. Raises LauncherError if the parent is gone."""
        try:
            self.line.settimeout(None)
            self.line.sendall(msgspec.json.encode(order) + b"\n")
        except OSError as error:
            raise LauncherError(f"{self.gone}: {error}") from error

    def take(self, timeout_s: float | None = 0.0) -> list[Word]:
        """Words that arrive within the time. Raises LauncherError if the parent is gone."""
        try:
            self.line.settimeout(timeout_s)
            data = self.line.recv(_READ_BYTES)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError as error:
            raise LauncherError(f"{self.gone}: {error}") from error
        if not data:
            raise LauncherError(self.gone)
        words = [msgspec.json.decode(line, type=Word) for line in self._lines.take(data)]
        for word in words:
            if word.what == "ended":
                self.ended[word.pids[0]] = word.code
            else:  # of the numbers of processes some come again
                self.ended = {pid: code for pid, code in self.ended.items() if pid not in word.pids}
        return words

    def begin_fork(
        self,
        function: str,
        *arguments: str,
        each: Sequence[Mapping[str, str]] = ({},),
        has_line: bool = False,
        trains: bool = False,
    ) -> None:
        """Order children as in :class:`Order`; :meth:`forked` returns the answer."""
        variables = [dict(one) for one in each]
        self.send(
            Order(
                what="fork", function=function, arguments=[*arguments], each=variables, has_line=has_line, trains=trains
            )
        )

    def fork(self, function: str, *arguments: str, **options: Any) -> list[int]:
        self.begin_fork(function, *arguments, **options)
        return self.forked()

    def count(self, child: int) -> list[int]:
        """Process ids of a child and of its children by a connection, or [] if it has ended."""
        self.send(Order(what="count", pid=child))
        return self.forked()

    def forked(self, within_s: float = _ANSWER_S) -> list[int]:
        """Process ids that answer an order.

        Raises:
            LauncherError: no child could be forked, or the parent is gone or silent.
        """
        deadline = time.monotonic() + within_s
        answers: list[Word] = []
        while not answers:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise SilentParent(f"it has not answered within {within_s:.0f} s")
            answers = [word for word in self.take(left_s) if word.what == "forked"]
        if answers[0].trouble:
            raise LauncherError(answers[0].trouble)
        return answers[0].pids

    def code_of(self, child: int, timeout_s: float | None) -> int | None:
        """Exit code of a child, or None if it still runs when the time is over."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while child not in self.ended and (left_s := deadline - time.monotonic()) > 0:
            self.take(None if timeout_s is None else left_s)
        return self.ended.get(child)

    def end(self) -> None:
        """End a parent that was forked from this process; it runs its exit handlers."""
        with contextlib.suppress(LauncherError):
            self.send(Order(what="end"))
        deadline = time.monotonic() + _END_S
        while processes.is_alive(self.pid) and time.monotonic() < deadline:
            time.sleep(0.005)
