"""Module that every Python below a measured command imports first: it notes joined groups, and what ranks raise.

A command that gave up, or whose processes never met, ends like a successful one, and a pipe in a shell hides that ranks
failed. Python imports a module of this name at its start, so that this folder on PYTHONPATH is enough. It may be any
Python: only the standard library is used, and nothing may fail or be left on ``sys.path``.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_TARGET = "torch.distributed.distributed_c10d"
_PLAN = "DISTBENCH_NOTES"  # as in ``records/launch_files.py``
_LONGEST_ERROR = 300
_OF_STARTERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions of torchrun and ``torch.multiprocessing.spawn`` for a rank that failed."""
_SLOT = "DISTBENCH_SLOT"  # as in ``elastic/records.py``
_LOOPBACK = "127.0.0.1"
_PACKAGES = (".", "src", "lib", "python")  # where a repository has packages, as in ``worker/bodies.py``
_tree = ""  # the other revision that this process runs, if any
_WORKER = "DISTBENCH_WORKER"
"""Variable of all processes that a worker of an elastic job starts, such as a data loader's: they are no workers."""


def _note(ranks: int) -> None:
    """Leave a file that says that a group of so many ranks was joined; 0: torch.distributed was imported."""
    try:
        plan = os.environ[_PLAN]
        with open(os.path.join(os.path.dirname(plan), f"joined{ranks}"), "w"):
            pass
    except (OSError, KeyError):
        pass  # on another host, or after the launch


def _note_rank(who: str, what: str, error: str = "") -> None:
    """Append a line: a rank began, or what it raised (``RankNote`` in ``launch/controlled.py``)."""
    import json
    import time

    line = [time.monotonic(), who, what, os.getpid(), error[:_LONGEST_ERROR]]
    _append("ranks.jsonl", json.dumps(line).encode())


def _append(name: str, line: bytes) -> None:
    try:
        path = os.path.join(os.path.dirname(os.environ[_PLAN]), name)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, line + b"\n")
        os.close(handle)
    except (OSError, KeyError):
        pass  # after the launch


def _note_what_it_raises() -> None:
    rank = os.environ.get("RANK")
    who = f"rank {rank}" if rank is not None else f"starter {' '.join(sys.argv)[:_LONGEST_ERROR]}"
    _note_rank(who, "began")
    if _tree:
        atexit.register(_note_copies, who)
    hook = sys.excepthook

    def note_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if rank is not None and not issubclass(kind, KeyboardInterrupt):
                _note_rank(who, "raised", _in_words(kind, error, trace))
            elif rank is None and kind.__name__ in _OF_STARTERS:
                _note_rank(who, "raised", _how_ranks_died(error))
        finally:
            hook(kind, error, trace)

    sys.excepthook = note_and_show


def _note_copies(who: str) -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_installed = "-packages" in file and "." not in name and name != "pytest_distbench"
        if is_installed and any(os.path.isfile(os.path.join(_tree, place, name, "__init__.py")) for place in _PACKAGES):
            _note_rank(who, "raised", f"imported {file}, a copy of a package that the repository has: pip install -e .")


def _in_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = next((f": {line}" for line in str(error).splitlines() if line.strip()), "")
    where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace is not None else ""
    return f"raised {kind.__name__}{text}{where}"


def _how_ranks_died(error: BaseException) -> str:
    if not hasattr(error, "get_first_failure"):
        return next((line.strip() for line in str(error).splitlines() if line.strip(" -")), type(error).__name__)
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    return f"rank {rank} died of {failure.signal_name()}" if code < 0 else f"rank {rank} ended with exit code {code}"


def _note_moment(what: str) -> None:
    """Append a line: when a worker of an elastic job reached a stage (``elastic/progress.py``)."""
    if os.environ.get(_WORKER) != str(os.getpid()):
        return
    import json
    import time

    found = os.environ.get
    line = {
        "what": what,
        "t": time.monotonic(),
        "slot": int(found(_SLOT, "0")),
        "facts": {
            "pid": os.getpid(),
            "rank": int(found("RANK", "0")),
            "world_size": int(found("WORLD_SIZE", "1")),
            "restarts": int(found("TORCHELASTIC_RESTART_COUNT", "0")),
            "address": "{}:{}".format(found("MASTER_ADDR"), found("MASTER_PORT")),
        },
    }
    _append("workers.jsonl", json.dumps(line).encode())


class _Finder:
    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as without this finder, and wrap its functions once it has run."""
        if name != _TARGET:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_look(module: ModuleType) -> None:
                execute(module)
                _look_at(module)

            spec.loader.exec_module = execute_and_look  # type: ignore[method-assign] # of this one instance
        return spec


def _look_at(module: Any) -> None:
    import functools

    join = module.init_process_group

    @functools.wraps(join)
    def join_and_note(*args: Any, **options: Any) -> Any:
        _note_moment("call")
        result = join(*args, **options)
        _note(module.get_world_size())
        _note_moment("group")
        return result

    module.init_process_group = join_and_note
    if _SLOT in os.environ:
        _close_doors(sys.modules.get("torch.distributed.rendezvous"))
    _note(0)
    _note_what_it_raises()
    _note_moment("torch")


def _close_doors(module: Any) -> None:
    """Let rank 0's store listen on the address where ranks meet only: torch's own listens on every interface."""
    import functools
    import socket

    make = getattr(module, "TCPStore", None)
    if make is None:
        return

    @functools.wraps(make)
    def make_on_loopback(*args: Any, **options: Any) -> Any:
        address = options.get("host_name"), options.get("port")
        if options.get("is_master") and address[0] == _LOOPBACK:
            try:
                listener = socket.create_server(address)
            except OSError:
                return make(*args, **options)  # this process has one there, which torch shares
            options["master_listen_fd"] = listener.detach()
        return make(*args, **options)

    module.TCPStore = make_on_loopback


def _enter_tree() -> None:
    """Map imports from the repository's working tree into the worktree of the revision that this process measures."""
    import json

    try:
        with open(os.environ[_PLAN]) as file:
            plan = json.load(file)
    except (OSError, KeyError, ValueError):
        return  # on another host, or after the launch
    tree, foreign = plan.get("tree"), plan.get("foreign_tree")
    if not tree or not foreign:
        return

    own = [tree, *([sys.prefix] if sys.prefix.startswith(f"{foreign}/") else [])]  # a virtual environment in it stays

    def there(folder: str) -> str:
        is_foreign = f"{folder}/".startswith(f"{foreign}/") and not f"{folder}/".startswith(tuple(f"{o}/" for o in own))
        return tree + folder[len(foreign) :] if is_foreign else folder

    global _tree
    _tree = tree
    sys.path[:] = map(there, sys.path)
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable___"):  # a hook of setuptools
            packages, namespaces = (getattr(module, table, {}) for table in ("MAPPING", "NAMESPACES"))
            packages.update({package: there(folder) for package, folder in packages.items()})
            namespaces.update({package: [*map(there, folders)] for package, folders in namespaces.items()})


def _give_way() -> None:
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _FOLDER]
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if _SLOT in os.environ and "RANK" in os.environ and _WORKER not in os.environ:
    os.environ[_WORKER] = str(os.getpid())
    _note_moment("process")
sys.meta_path.insert(0, _Finder())
_enter_tree()
_give_way()
