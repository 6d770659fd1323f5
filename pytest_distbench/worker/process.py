"""The process of a rank: what it makes of it before anything of the user's runs, and what that used.

That is environment, output, signals, terminal and host; then its CPU time and memory, and the software it ran, with the
precision and the algorithms that a body, and not the machine, chooses. Who else computed meanwhile is in ``load``.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import functools
import os
import platform
import resource
import signal
import sys
import threading
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.records.launch_files import CONTRACT, LONGEST_SOCKETS_FOLDER
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import STACKS_SIGNAL, heartbeat_s, variables_from_wire
from pytest_distbench.releases import RECORDER_FILE_VARIABLE, RECORDER_SIZE_VARIABLE, move_editables
from pytest_distbench.worker.forked import place_sockets
from pytest_distbench.worker.torch_internals import cpus_near_gpu

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET (linux/sched.h)."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_PACKAGE = Path(__file__).resolve().parents[1]


def enter_namespaces(plan: LaunchPlan, rank: int) -> None:
    """Be in the namespaces of the plan from now on, this thread and those that it will start, with the variables there.

    Raises:
        LauncherError: the kernel does not let it.
    """
    user = Path(plan.namespaces[rank], "user")
    if user.exists():
        _enter(user, _NEW_USER, rank)
    _enter(Path(plan.namespaces[rank], "net"), _NEW_NET, rank)
    os.environ |= plan.rank_variables[rank]


def _enter(place: Path, kind: int, rank: int) -> None:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _LIBC.setns(descriptor, kind) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)
    except OSError as error:
        why = " (a process of several threads cannot enter a user namespace: run pytest as root)"
        many = why if kind == _NEW_USER and len(os.listdir("/proc/self/task")) > 1 else ""
        raise LauncherError(f"rank {rank} cannot enter its network: {place}: {error.strerror}{many}") from error


_LONGEST_TOLD = 300
_OUR_THREADS = "distbench-"
_RECORDED = "2000"
"""Collectives that torch's flight recorder keeps: its own default."""


def tell_of_threads(tell: Callable[[str], None]) -> None:
    """What a thread raises ends that thread alone, as in any Python: a checkpoint that was not written is told."""
    show = threading.excepthook

    def show_and_tell(raised: threading.ExceptHookArgs) -> None:
        name = raised.thread.name if raised.thread is not None else "a thread"
        text = f": {raised.exc_value}" if str(raised.exc_value or "") else ""
        if not name.startswith(_OUR_THREADS):
            tell(f"thread {name} raised {raised.exc_type.__name__}{text}"[:_LONGEST_TOLD])
        show(raised)

    threading.excepthook = show_and_tell


def enter_control_group(folder: str) -> None:
    """Be limited by a control group from now on: all threads of this process, and whatever it starts."""
    (Path(folder) / "cgroup.procs").write_text("0")  # this process, by whatever number it is known there


def take_environment(plan: LaunchPlan) -> None:
    """Make the plan's variables, path, folder and sockets those of this process; the launcher's contract stays."""
    contract = {name: os.environ[name] for name in CONTRACT if name in os.environ}
    os.environ.clear()
    os.environ.update(variables_from_wire(plan.variables))
    os.environ.update(contract)
    if (rank := plan.work.stands_for) is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(plan.world_size))  # alone on its host
    _size_recorder()
    if plan.device == "cuda":
        arm_nccl(plan, int(os.environ["RANK"]))
    take_path(plan)
    os.chdir(plan.working_dir)
    sockets = plan.files.sockets
    if len(os.fsencode(sockets)) <= LONGEST_SOCKETS_FOLDER:
        sockets.mkdir(mode=0o700, exist_ok=True)
        place_sockets(str(sockets))


def take_path(plan: LaunchPlan) -> None:
    """Import from the folders of the plan: what an editable install has in the working tree, from this group's tree."""

    def there(folder: str) -> str:
        path = Path(folder)
        is_moved = path.is_relative_to(plan.foreign_tree) and not path.is_relative_to(plan.tree) and path != _PACKAGE
        return str(Path(plan.tree, path.relative_to(plan.foreign_tree))) if is_moved else folder

    sys.path[:] = plan.python_path
    if plan.tree and plan.foreign_tree:
        move_editables(there)


def take_program(file: str) -> None:
    """Be, for a function, a program of its file without arguments: what started this process is no business of it."""
    sys.argv = [file]
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins


def _size_recorder() -> None:
    """Have torch's flight recorder on: in torch 2.8 it is off unless it is asked for."""
    os.environ.setdefault(RECORDER_SIZE_VARIABLE, _RECORDED)


def arm_nccl(plan: LaunchPlan, place: int) -> None:
    """Let NCCL leave evidence of a hang, and several ranks on one GPU pose as hosts of their own (NCCL_HOSTID).

    To be called before the group is joined. ``place`` is the process's own in its launch: rank or slot.
    """
    _size_recorder()
    settings = {RECORDER_FILE_VARIABLE: plan.files.nccl_flight_prefix}
    settings["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = f"{heartbeat_s(plan.timeout_s):.0f}"
    if plan.shares_gpu:
        settings |= {"NCCL_HOSTID": f"distbench-{place}", "NCCL_SOCKET_IFNAME": "lo"}
        settings |= {"NCCL_IB_DISABLE": "1", "NCCL_MAX_CTAS": "2"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def bind_near_gpu(index: int, mode: str) -> None:
    """Let all threads of this process run on the CPUs near its GPU alone; threads that it starts later inherit that.

    The index is that among the visible GPUs, the mode as ``torchrun --numa-binding`` names it.
    """
    try:
        cpus = cpus_near_gpu(index, mode)
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"distbench_numa_binding = {mode}: torch {torch.__version__} cannot find the CPUs near GPU {index} "
            f"({type(error).__name__}: {error}); leave the key out on this machine"
        ) from error
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cpus)


def take_output(path: Path) -> None:
    """Send stdout and stderr, of Python and of C, to the rank's log; stdin is empty."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _set_streams()


def take_terminal() -> None:
    """Use the terminal that the control line has handed over, and let its Ctrl-C reach a debugger."""
    _set_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_streams() -> None:
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if descriptor == 0:
            stream = os.fdopen(0, "r", closefd=False)
        else:
            stream = os.fdopen(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def forbid_breakpoints(rank: int, attached: int | None) -> None:
    """Without a terminal pdb reads an empty file and quits: say what to do, or pass over it for the attached rank."""

    def hook(*args: object, **options: object) -> None:
        del args, options
        if attached is None:
            raise RuntimeError(
                f"breakpoint() in rank {rank}, which has no terminal: run it again with --distbench-attach {rank}"
            )

    sys.breakpointhook = hook


def take_signals(stacks: Path) -> None:
    """Lead a session, die by default on the usual signals, show the stacks when asked and at SIGTERM.

    SIGTERM comes from whoever started the ranks when another rank has died: what this one was waiting for explains it.
    """
    if os.getpgid(0) != os.getpid():
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=True)
    file = open(stacks, "w")  # noqa: SIM115 open for life
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)


def own_cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class MemoryPeak:
    """The most memory that a rank needs from now on, beyond what its process has already.

    A process that has loaded torch has some hundred MiB, shared with others in part, beside which a model is little. So
    the system is asked to forget its high-water mark (proc_pid_clear_refs(5)), and what the process had is taken off.
    Pages of files are, too: which of a library's are read in, and when, is chance.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._on_cuda = plan.device == "cuda"
        self._before: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        self._before = {}
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _memory()

    def num_bytes(self) -> int | None:
        """So far. On CUDA the most that torch's allocator handed out; None where the system does not tell."""
        if self._on_cuda:
            return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
        with contextlib.suppress(OSError, KeyError):
            before, now = self._before, _memory()
            files = max(0, now["RssFile"] - before["RssFile"])
            return max(0, now["VmHWM"] - before["VmRSS"] - files)
        return None


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
    pairs = (line.partition(":")[::2] for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def gpu_in_use() -> str:
    """UUID of the CUDA device in use, as torch spells it; empty where none is, or torch does not tell."""
    if not torch.cuda.is_initialized():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


_OPERATIONS = {"matmul": "cuda.matmul", "conv": "cudnn.conv", "rnn": "cudnn.rnn"}
"""Where torch 2.9 and later keep the precision of each, in ``torch.backends``."""

_lower_precisions: set[str] = set()
"""Types below float32 to which a tensor was cast while somebody looked."""

_autocast_types: set[str] = set()
"""To which autocast was switched on in this process."""


def forbid_tf32() -> None:
    """Compute in float32 what is float32, on every card.

    Where torch keeps a precision for each operation, that decides. The flags from before are set first and all the
    same: torch refuses to read them where they contradict it, in its own compiler too. So is what stands for all
    operations, to which torch goes back at the end of ``torch.backends.cudnn.flags``.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for kept in (torch.backends, torch.backends.cudnn, *map(_kept, _OPERATIONS)):
        if hasattr(kept, "fp32_precision"):
            kept.fp32_precision = "ieee"


def note_autocast() -> None:
    """From now on remember to which types autocast is switched on: at its end a body has left it."""
    enter = torch.autocast.__enter__
    if hasattr(enter, "__wrapped__"):
        return

    @functools.wraps(enter)
    def entering(self: torch.autocast) -> Any:
        result = enter(self)
        if torch.is_autocast_enabled(self.device):
            _autocast_types.add(str(torch.get_autocast_dtype(self.device)).removeprefix("torch."))
        return result

    torch.autocast.__enter__ = entering  # type: ignore[method-assign]


_CASTS = ("to", "type", "type_as", "half", "bfloat16")


def watch_casts() -> Callable[[], None]:
    """From now on remember to which types below float32 Python casts a tensor. Returned is what ends it."""

    def watched(cast: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(cast)
        def casting(self: torch.Tensor, *args: Any, **options: Any) -> Any:
            found = cast(self, *args, **options)
            dtype = getattr(found, "dtype", self.dtype)
            if dtype != self.dtype and dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize:
                _lower_precisions.add(str(dtype).removeprefix("torch."))
            return found

        return casting

    for name in _CASTS:
        setattr(torch.Tensor, name, watched(getattr(torch.Tensor, name)))

    def end() -> None:
        for name in _CASTS:
            if name in vars(torch.Tensor):
                delattr(torch.Tensor, name)  # what it inherits is there again

    return end


def settings() -> dict[str, str]:
    """What is chosen now, by the names of :data:`pytest_distbench.records.environment.SETTINGS`."""
    found = {
        "autocast": "+".join(sorted(_autocast_types)) or "off",
        "lower_precision": "+".join(sorted(_lower_precisions)) or "none",
        "deterministic": _on(torch.are_deterministic_algorithms_enabled()),
    }
    if torch.cuda.is_initialized():
        found |= {f"{operation}_precision": _precision(operation) for operation in _OPERATIONS}
        found["cudnn_benchmark"] = _on(torch.backends.cudnn.benchmark)
        found["cudnn_deterministic"] = _on(torch.backends.cudnn.deterministic)
    return found


def _kept(operation: str) -> Any:
    """What has the precision; without one where this torch has none for each operation."""
    try:
        return attrgetter(_OPERATIONS[operation])(torch.backends)
    except AttributeError:
        return None


def _precision(operation: str) -> str:
    """``ieee`` or ``tf32``."""
    precision = getattr(_kept(operation), "fp32_precision", None)
    if precision is None:
        allows = torch.backends.cuda.matmul if operation == "matmul" else torch.backends.cudnn
        precision = "tf32" if allows.allow_tf32 else "ieee"
    return "ieee" if precision == "none" else str(precision)


def _on(is_on: bool) -> str:  # noqa: FBT001
    return "on" if is_on else "off"


def software(plan: LaunchPlan) -> dict[str, str]:
    """Versions and settings: what decides which arithmetic runs and where."""
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        **settings(),
    }
    if plan.backend == "mpi" and (mpi := mpi_version(ctypes.CDLL(None))):
        found["mpi"] = mpi
    if plan.device == "cuda":
        found["numa_binding"] = plan.numa_binding or "none"
    if torch.cuda.is_initialized():  # to ask whether it is available would load the driver
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if (cudnn := torch.backends.cudnn.version()) is not None:
            found["cudnn"] = str(cudnn)
    return found


def mpi_version(process: Any) -> str:
    """Of the MPI library that torch has loaded into this process, its first words: ``Open MPI v5.0.6``; empty: none.

    ``MPI_Get_library_version`` of the MPI standard, at most 8192 characters there, may be called at any time.
    """
    try:
        ask = process.MPI_Get_library_version
    except AttributeError:
        return ""
    told, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    ask(told, ctypes.byref(length))
    return told.value.decode(errors="replace").partition(",")[0].partition("\n")[0].strip()
