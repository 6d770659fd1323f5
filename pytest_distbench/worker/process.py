"""A rank's process: its set-up before any of the user's code runs, and the resources that it used.

Environment, output, signals, terminal and host; then CPU time, memory and software, with the precision and algorithms
that a body chooses. ``load`` measures what other processes computed.
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

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET (linux/sched.h)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PACKAGE = Path(__file__).resolve().parents[1]


def enter_namespaces(plan: LaunchPlan, rank: int) -> None:
    """Enter the plan's namespaces, with this thread and those it will start, and set the variables of the rank there.

    Raises:
        LauncherError: the kernel refuses.
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


_LONGEST_REPORT = 300
_OUR_THREADS = "distbench-"
_RECORDED = "2000"  # collectives that torch's flight recorder keeps: its own default


def report_threads(report: Callable[[str], None]) -> None:
    """Report exceptions in threads, which end that thread alone: a checkpoint may not have been written."""
    show = threading.excepthook

    def report_and_show(raised: threading.ExceptHookArgs) -> None:
        name = raised.thread.name if raised.thread is not None else "a thread"
        text = f": {raised.exc_value}" if str(raised.exc_value or "") else ""
        if not name.startswith(_OUR_THREADS):
            report(f"thread {name} raised {raised.exc_type.__name__}{text}"[:_LONGEST_REPORT])
        show(raised)

    threading.excepthook = report_and_show


def enter_control_group(folder: str) -> None:
    (Path(folder) / "cgroup.procs").write_text("0")  # this process, by whatever number it is known there


def take_environment(plan: LaunchPlan) -> None:
    """Take the plan's variables, path, folder and sockets; keep the launcher's variables."""
    now = dict(os.environ)
    wanted = variables_from_wire(plan.variables) | {name: now[name] for name in CONTRACT if name in now}
    for name in now.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if now.get(name) != value})
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
    """Set the import path from the plan; editable installs of the working tree lead to this group's tree."""

    def there(folder: str) -> str:
        path = Path(folder)
        is_foreign = path.is_relative_to(plan.foreign_tree) and not path.is_relative_to(plan.tree) and path != _PACKAGE
        return str(Path(plan.tree, path.relative_to(plan.foreign_tree))) if is_foreign else folder

    sys.path[:] = plan.python_path
    if plan.tree and plan.foreign_tree:
        move_editables(there)


def take_program(file: str) -> None:
    """Set ``sys.argv`` to this file alone and make an empty ``__main__``, as if the file was the program."""
    sys.argv = [file]
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins


def _size_recorder() -> None:
    os.environ.setdefault(RECORDER_SIZE_VARIABLE, _RECORDED)  # in torch 2.8 it is off unless asked for


def arm_nccl(plan: LaunchPlan, place: int) -> None:
    """Let NCCL leave evidence of a hang, and let several ranks on one GPU pose as separate hosts (NCCL_HOSTID).

    Called before the group is joined. ``place``: rank or slot.
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
    """Bind all threads of this process, and those they start, to the CPUs near its GPU.

    ``index`` is that among the visible GPUs, ``mode`` as in ``torchrun --numa-binding``.
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
    """Use the terminal that pytest has handed over, and let its Ctrl-C reach a debugger."""
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
    """Make breakpoint() in a rank without a terminal raise with advice, or do nothing if another rank is attached."""

    def hook(*args: object, **options: object) -> None:
        del args, options
        if attached is None:
            raise RuntimeError(
                f"breakpoint() in rank {rank}, which has no terminal: run it again with --distbench-attach {rank}"
            )

    sys.breakpointhook = hook


def take_signals(stacks: Path) -> None:
    """Lead a session, end on the usual signals, and write stacks on request and at SIGTERM.

    SIGTERM comes when another rank has died: what this one was waiting for explains that.
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
    """Peak memory that a rank needs from now on, in addition to what its process has already.

    A process with torch has some hundred MiB, partly shared, much more than a small model: the high-water mark is reset
    (proc_pid_clear_refs(5)), and what the process had is subtracted. So are pages of files, as which of them are loaded
    is chance.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._on_cuda = plan.device == "cuda"
        self._before: dict[str, int] = {}
        self._of_start: int | None = None
        self.begin()

    def begin(self) -> None:
        self._before, self._of_start = {}, None
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _memory()

    def begin_second(self) -> None:
        """Start a second peak, which is independent of the peak during start-up.

        Does nothing on CUDA: the allocator's peak is the user's to reset.
        """
        if not self._on_cuda and self._of_start is None and (so_far := self._seen()) is not None:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
                self._of_start = so_far

    def num_bytes(self) -> int | None:
        """Peak bytes so far, on CUDA of torch's allocator, or None if the system does not say."""
        seen = self._seen()
        return None if seen is None else max(seen, self._of_start or 0)

    def second_num_bytes(self) -> int | None:
        """Peak bytes since :meth:`begin_second`, or None if that was never called or the system does not say."""
        return None if self._of_start is None else self._seen()

    def _seen(self) -> int | None:
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
    """UUID of the CUDA device in use, as torch spells it, or ""."""
    if not torch.cuda.is_initialized():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


_OPERATIONS = {"matmul": "cuda.matmul", "conv": "cudnn.conv", "rnn": "cudnn.rnn"}
"""Operation -> path below ``torch.backends`` where torch 2.9 and later keep its precision."""

_lower_precisions: set[str] = set()  # types below float32 to which a tensor was cast while somebody looked
_autocast_types: set[str] = set()  # to which autocast was switched on in this process


def forbid_tf32() -> None:
    """Compute float32 operations in float32, on every card.

    torch's precision of each operation decides. The older flags are set first all the same, and so is what
    ``torch.backends.cudnn.flags`` restores: torch refuses to read flags that contradict it, also in its own compiler.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for kept in (torch.backends, torch.backends.cudnn, *map(_kept, _OPERATIONS)):
        if hasattr(kept, "fp32_precision"):
            kept.fp32_precision = "ieee"


def note_autocast() -> None:
    """Note from now on to which types autocast is switched on; at its end a body has left it."""
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
    """Note from now on to which types below float32 Python casts tensors. Returns a function that ends this."""

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
    """The chosen precisions and algorithms, by the names of :data:`pytest_distbench.records.environment.SETTINGS`."""
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
    try:
        return attrgetter(_OPERATIONS[operation])(torch.backends)
    except AttributeError:
        return None


def _precision(operation: str) -> str:
    precision = getattr(_kept(operation), "fp32_precision", None)
    if precision is None:
        allows = torch.backends.cuda.matmul if operation == "matmul" else torch.backends.cudnn
        precision = "tf32" if allows.allow_tf32 else "ieee"
    return "ieee" if precision == "none" else str(precision)


def _on(is_on: bool) -> str:  # noqa: FBT001
    return "on" if is_on else "off"


def software(plan: LaunchPlan) -> dict[str, str]:
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
    """The MPI library's name and version, such as ``Open MPI v5.0.6``, or "" if torch has loaded none.

    ``MPI_Get_library_version`` returns at most 8192 characters, and may be called at any time.
    """
    try:
        ask = process.MPI_Get_library_version
    except AttributeError:
        return ""
    version, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    ask(version, ctypes.byref(length))
    return version.value.decode(errors="replace").partition(",")[0].partition("\n")[0].strip()
