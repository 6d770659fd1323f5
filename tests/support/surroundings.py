"""What a body can see of its process: facts that are to be the same whatever started it, and draws that are not."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import ctypes
import decimal
import faulthandler
import fcntl
import gc
import locale
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import random
import re
import resource
import secrets
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OF_A_LAUNCH = {"DISTBENCH_SESSION", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
"""Variables that have another value in each launch, whatever the launcher."""

_PR_GET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_GET_CHILD_SUBREAPER, _PR_GET_NO_NEW_PRIVS, _PR_GET_TIMERSLACK = (
    2,
    3,
    37,
    39,
    30,
)


def draws() -> dict[str, str]:
    """A draw of everything that is seeded by chance in a process that seeds nothing."""
    return {
        "torch.initial_seed": str(torch.initial_seed()),
        "torch.rand": str(torch.rand(1).item()),
        "torch.random.get_rng_state": str(torch.random.get_rng_state().sum().item()),
        "numpy.random": str(np.random.random()),
        "numpy.random.default_rng": str(np.random.default_rng().random()),
        "random": str(random.random()),
        "random.SystemRandom": str(random.SystemRandom().random()),
        "secrets": secrets.token_hex(),
        "uuid.uuid4": str(uuid.uuid4()),
        "tempfile": next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        "hash of a text": str(hash("a text")),
        **dict(_generators()),
    }


def _generators() -> Iterator[tuple[str, str]]:
    """The state of generators that loaded modules keep."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            match value:
                case np.random.Generator():
                    state = value.bit_generator.state
                case np.random.RandomState():
                    state = value.get_state()
                case random.SystemRandom():
                    continue
                case random.Random():
                    state = value.getstate()
                case torch.Generator():
                    state = value.get_state().tolist()
                case _:
                    continue
            yield f"{name}.{attribute}", str(hash(str(state)))


def facts() -> dict[str, Any]:
    """What is no chance, as JSON can hold it, without what only this launch has."""
    found = _of_torch() | _of_python() | _of_process() | _of_signals() | _of_files()
    return {name: value if isinstance(value, dict) else _ADDRESS.sub("", repr(value)) for name, value in found.items()}


def _of_torch() -> dict[str, Any]:
    b = torch.backends
    return {
        "torch.get_default_dtype": torch.get_default_dtype(),
        "torch.get_default_device": torch.get_default_device(),
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled": torch.is_inference_mode_enabled(),
        "torch.is_autocast_enabled": torch.is_autocast_enabled(),
        "torch.is_anomaly_enabled": torch.is_anomaly_enabled(),
        "torch.get_num_threads": torch.get_num_threads(),
        "torch.get_num_interop_threads": torch.get_num_interop_threads(),
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.fp32_precision": [getattr(b, "fp32_precision", None), getattr(b.mkldnn, "fp32_precision", None)],
        "torch.deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ],
        "torch.backends.cudnn": [
            b.cudnn.enabled,
            b.cudnn.benchmark,
            b.cudnn.deterministic,
            b.cudnn.allow_tf32,
            b.cuda.matmul.allow_tf32,
        ],
        "torch.backends.mkldnn": [b.mkldnn.is_available(), b.mkldnn.enabled, b.mkl.is_available()],
        "torch.backends.cuda.sdp": [
            b.cuda.flash_sdp_enabled(),
            b.cuda.math_sdp_enabled(),
            b.cuda.mem_efficient_sdp_enabled(),
        ],
        "torch.cuda.is_available": torch.cuda.is_available(),
        "torch.cuda.is_initialized": torch.cuda.is_initialized(),
        "torch.cuda._is_in_bad_fork": torch.cuda._is_in_bad_fork(),
        "torch.multiprocessing.get_sharing_strategy": torch.multiprocessing.get_sharing_strategy(),
        "torch.distributed.is_initialized": torch.distributed.is_initialized(),
        "torch.distributed.debug_level": torch.distributed.get_debug_level(),
        "torch.nn.Module's global hooks": len(torch.nn.modules.module._global_forward_hooks),
        "torch.denormal": torch.tensor([1e-45]).mul(1.0).item() == 0.0,
        "torch.printoptions": torch._tensor_str.PRINT_OPTS.precision,
        "torch.utils.data workers": torch.utils.data.get_worker_info(),
    }


def _of_python() -> dict[str, Any]:
    main = sys.modules["__main__"]
    process: Any = multiprocessing.current_process()
    server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    return {
        "sys.argv": sys.argv,
        "sys.orig_argv": sys.orig_argv,
        "sys.path": sys.path,
        "sys.meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "sys.path_hooks": len(sys.path_hooks),
        "sys.flags": _flags(),
        "sys.executable": sys.executable,
        "sys.warnoptions": sys.warnoptions,
        "sys.dont_write_bytecode": sys.dont_write_bytecode,
        "sys.pycache_prefix": sys.pycache_prefix,
        "sys.modules": sorted(sys.modules),
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.breakpointhook": getattr(sys.breakpointhook, "__qualname__", ""),
        "sys.displayhook": sys.displayhook,
        "threading.excepthook": getattr(threading.excepthook, "__module__", ""),
        "sys.getrecursionlimit": sys.getrecursionlimit(),
        "sys.getswitchinterval": sys.getswitchinterval(),
        "sys.get_int_max_str_digits": sys.get_int_max_str_digits(),
        "sys.gettrace": sys.gettrace(),
        "sys.getprofile": sys.getprofile(),
        "__main__": {
            n: repr(getattr(main, n, None))
            for n in ("__name__", "__file__", "__spec__", "__package__", "__loader__", "__doc__", "__cached__")
        },
        "__main__'s names": sorted(vars(main)),
        "builtins": sorted(set(vars(builtins)) - {"_"}),
        "warnings.filters": [str(f) for f in warnings.filters],
        "warnings.showwarning": getattr(warnings.showwarning, "__module__", ""),
        "logging.root": [logging.root.level, logging.root.handlers, logging.root.filters],
        "logging.disable": logging.root.manager.disable,
        "logging.lastResort": logging.lastResort and logging.lastResort.level,
        "logging.raiseExceptions": logging.raiseExceptions,
        "logging.levels": {
            n: logger.level
            for n, logger in sorted(logging.root.manager.loggerDict.items())
            if isinstance(logger, logging.Logger) and logger.level
        },
        "logging.handlers": {
            n: str(logger.handlers)
            for n, logger in sorted(logging.root.manager.loggerDict.items())
            if isinstance(logger, logging.Logger) and logger.handlers
        },
        "gc.isenabled": gc.isenabled(),
        "gc.get_threshold": gc.get_threshold(),
        "gc.get_debug": gc.get_debug(),
        "gc.callbacks": gc.callbacks,
        "gc.is_frozen": gc.get_freeze_count() > 100_000,
        "locale": [
            locale.setlocale(locale.LC_ALL),
            locale.getpreferredencoding(False),
            sys.getfilesystemencoding(),
            sys.getfilesystemencodeerrors(),
        ],
        "time.tzname": time.tzname,
        "decimal": decimal.getcontext(),
        "faulthandler.is_enabled": faulthandler.is_enabled(),
        "atexit": atexit._ncallbacks(),
        "threading.enumerate": sorted(f"{t.name} daemon={t.daemon}" for t in threading.enumerate()),
        "threading.current_thread": threading.current_thread().name,
        "threading.stack_size": threading.stack_size(),
        "asyncio policy": type(asyncio.get_event_loop_policy()).__name__,
        "tempfile.gettempdir": tempfile.gettempdir(),
        "tempfile.tempdir": tempfile.tempdir,
        "socket.getdefaulttimeout": socket.getdefaulttimeout(),
        "numpy.geterr": np.geterr(),
        "numpy.printoptions": np.get_printoptions(),
        "multiprocessing.parent_process": multiprocessing.parent_process() is not None,
        "multiprocessing.current_process": [process.name, process.daemon, process._identity],
        "multiprocessing.get_start_method": multiprocessing.get_start_method(allow_none=True),
        "multiprocessing.active_children": multiprocessing.active_children(),
        "multiprocessing.forkserver": [server._forkserver_pid, server._forkserver_address, server._inherited_fds],
        "multiprocessing.resource_tracker": [tracker._fd, tracker._pid],
        "multiprocessing.util._finalizer_registry": len(multiprocessing.util._finalizer_registry),
    }


def _flags() -> dict[str, int]:
    """Those of this Python. That torchrun gives it -u shows in stdin, stdout and stderr, where it does."""
    return {
        name: getattr(sys.flags, name)
        for name in dir(sys.flags)
        if name.islower()
        and name != "unbuffered"
        and isinstance(getattr(sys.flags, name), int)
        and not name.startswith("n_")
    }


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _prctl(option: int) -> int:
    found = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(option, ctypes.byref(found), 0, 0, 0)
    return found.value


def _of_process() -> dict[str, Any]:
    libc = ctypes.CDLL(None)
    limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
    tty = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4]
    status = _status()
    return {
        **{f"resource.{name}": limit for name, limit in limits.items()},
        "os.getpgid is own": os.getpgid(0) == os.getpid(),
        "os.getsid is own": os.getsid(0) == os.getpid(),
        "controlling terminal": tty,
        "os.getpriority": os.getpriority(os.PRIO_PROCESS, 0),
        "os.sched": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority],
        "os.sched_getaffinity": sorted(os.sched_getaffinity(0)),
        "umask": status["Umask"],
        "os.getcwd": os.getcwd(),
        "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
        "no_new_privs": status["NoNewPrivs"],
        "seccomp": status["Seccomp"],
        "transparent huge pages": status.get("THP_enabled"),
        "prctl pdeathsig": _prctl(_PR_GET_PDEATHSIG),
        "prctl dumpable": libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0),
        "prctl subreaper": _prctl(_PR_GET_CHILD_SUBREAPER),
        "prctl timer slack": libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0),
        "comm": status["Name"],
        "/proc/self/cmdline": Path("/proc/self/cmdline").read_text().split("\0"),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
        "coredump_filter": Path("/proc/self/coredump_filter").read_text(),
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in sorted(os.listdir("/proc/self/ns"))},
        "children": _children(),
        "os.environ": {n: "one launch's" if n in _OF_A_LAUNCH else v for n, v in os.environ.items()},
        "os.environ is C's": all(_getenv(libc, n) == v for n, v in os.environ.items()),
        "/proc/self/environ": sorted(
            v.partition("=")[0] for v in Path("/proc/self/environ").read_text(errors="replace").split("\0")
        ),
    }


def _getenv(libc: Any, name: str) -> str | None:
    libc.getenv.restype = ctypes.c_char_p
    found = libc.getenv(os.fsencode(name))
    return None if found is None else os.fsdecode(found)


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def _of_signals() -> dict[str, Any]:
    status = _status()
    return {
        "signal.getsignal": {
            s.name: str(signal.getsignal(s)).partition(" at 0x")[0]
            for s in sorted(signal.valid_signals())
            if isinstance(s, signal.Signals)
        },
        "signals blocked": status["SigBlk"],
        "signals ignored": status["SigIgn"],
        "signals caught": status["SigCgt"],
        "signal.pthread_sigmask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "signal.getitimer": signal.getitimer(signal.ITIMER_REAL),
        "signal.set_wakeup_fd": signal.set_wakeup_fd(-1),
        "signal.alarm": signal.alarm(0),
    }


def _stream(file: Any) -> dict[str, Any]:
    if file.closed:
        return {"closed": True}
    mode = os.fstat(file.fileno()).st_mode
    return {
        "number": file.fileno(),
        "isatty": file.isatty(),
        "is_file": stat.S_ISREG(mode),
        "is_character_device": stat.S_ISCHR(mode),
        "encoding": file.encoding,
        "errors": file.errors,
        "line_buffering": file.line_buffering,
        "write_through": file.write_through,
        "newlines": file.newlines,
        "name": file.name,
        "mode": file.mode,
        "type": type(file).__name__,
        "flags": fcntl.fcntl(file, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK),
        "buffer": type(file.buffer).__name__,
    }


def _of_files() -> dict[str, Any]:
    found = {}
    for name in ("stdin", "stdout", "stderr"):
        found[f"sys.{name}"] = {n: str(v) for n, v in _stream(getattr(sys, name)).items()}
        found[f"sys.__{name}__ is it"] = getattr(sys, f"__{name}__") is getattr(sys, name)
        found[f"sys.__{name}__"] = {n: str(v) for n, v in _stream(getattr(sys, f"__{name}__")).items()}
    opened = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            opened.append(re.sub(r"\d+", "", os.readlink(f"/proc/self/fd/{number}")))
        except OSError:
            continue
    return {**found, "open descriptors": sorted(map(os.path.basename, opened))}
