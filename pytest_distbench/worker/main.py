"""One rank's life: environment, logs, import, rendezvous, body, report, teardown.

Both launchers end up in :func:`run_rank`; ``python -m pytest_distbench.worker PLAN`` is what ``torchrun`` starts.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import pdb
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import msgspec
import psutil
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from pytest_distbench.records import ErrorReport, LaunchPlan, Outcome, Phase, RankReport
from pytest_distbench.wire import LONGEST_SOCKETS_FOLDER, SOCKETS_FOLDER, STACKS_SIGNAL, XFAILED, variables_from_wire
from pytest_distbench.worker import bodies
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.control import ControlLine

CONTRACT = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""The environment variables torchrun gives a rank; an inherited one must never reach a body."""

STORE_SHARE = 0.6
GROUP_SHARE = 0.8
"""Time-outs nest, as shares of the launch's: rendezvous before collective before launch, so that the inner explains."""

HOLD_S = 120.0
"""How long a rank that did not pass waits to be ended by pytest, which looks at its peers first."""

_MACHINERY = (contextlib.__file__, runpy.__file__, ast.__file__)
_REWRITING = "/_pytest/assertion/"
"""Frames in these files stand between ours and the user's."""

_LONGEST_TEXT = 8_000


def run_rank(plan_path: str) -> bool:
    """Run the plan in this process as the rank the environment names. Returns whether the body passed."""
    plan = msgspec.json.decode(Path(plan_path).read_bytes(), type=LaunchPlan)
    _take_environment(plan)
    rank = int(os.environ["RANK"])
    directory = Path(plan.directory)
    is_attached = rank == plan.attached
    _take_output(directory / f"rank{rank}.log")
    _take_signals(directory / f"stacks{rank}.txt")
    control = ControlLine(directory, rank, reports_progress=plan.reports_progress, is_attached=is_attached)
    if is_attached:
        _take_terminal()
    else:
        _forbid_breakpoints(rank, plan.attached)
    return _Life(plan, rank, control).run()


class _Life:
    """The phases of one rank, with the clock of each."""

    def __init__(self, plan: LaunchPlan, rank: int, control: ControlLine) -> None:
        self.plan = plan
        self.rank = rank
        self.control = control
        self.current: Phase = "start"
        self.seconds: dict[str, float] = {"begin": time.monotonic()}
        self.context = RankContext(plan, control)
        self.body_s = self.cpu_s = self.busy_s = 0.0

    def run(self) -> bool:
        outcome: Outcome = "passed"
        reason = ""
        error: ErrorReport | None = None
        pid = os.getpid()
        try:
            self._measure()
        except BaseException as raised:  # noqa: BLE001 a rank reports whatever ended it, KeyboardInterrupt and SystemExit included
            outcome, reason, error = _classify(raised)
            if self.plan.post_mortem and self.rank == self.plan.attached and outcome == "failed":
                pdb.post_mortem(_user_frames(raised) or raised.__traceback__)
        if os.getpid() != pid:
            os._exit(0)  # a child the body forked and let run on: the rank is its parent
        _flush_output()
        self._report(outcome, reason, error)
        if outcome != "passed":
            self.control.send(outcome)
            # Its exit would make the elastic agent end the peers, which have reports to write and stacks to show.
            time.sleep(HOLD_S)
            return False
        self.control.send("done")
        with self.phase("teardown"):
            self.control.wait_until_all_joined()
            self._leave_group()
        self.control.phase("exit")
        return True

    def _measure(self) -> None:
        plan = self.plan
        if plan.device == "cuda":
            torch.cuda.set_device(self.context.device)
        if plan.set_threads is not None:
            torch.set_num_threads(plan.set_threads)
        if not plan.body.function:
            with self._turn(), self.phase("body"), self._resources():
                _run_script(plan)
            self.context.record("wall_time", self.body_s, unit="s", better="lower", reduce="max")
            return
        with self.phase("import"):
            body = bodies.load(plan.body)
        with self.phase("rendezvous"):
            self.control.wait_for_the_others()
            _join_group(plan, self.context)
        with self._turn(), self.phase("body"), self._resources():
            for seed in plan.seeds:
                self.context.seed = seed
                self.context.watch.is_on &= seed == plan.seeds[0]  # the others run the same code
                with self.context.point(seed=seed) if len(plan.seeds) > 1 else contextlib.nullcontext():
                    body(self.context)
        self.context.check_complete()
        self.context.watch.read()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Begin when it is this group's turn, and go on to the end when it is again: an exit disturbs the other."""
        self.context.take_turn()
        yield
        bodies.check_origin(self.plan)
        self.context.take_turn()

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.current = phase
        self.control.phase(phase)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = time.monotonic() - start

    @contextlib.contextmanager
    def _resources(self) -> Iterator[None]:
        """Measure what this rank and the whole machine computed meanwhile: the difference is other processes' work."""
        wall, cpu, busy = time.perf_counter(), _own_cpu_s(), _machine_busy_s()
        try:
            yield
        finally:
            self.body_s = time.perf_counter() - wall
            self.cpu_s = _own_cpu_s() - cpu
            self.busy_s = _machine_busy_s() - busy

    def _report(self, outcome: Outcome, reason: str, error: ErrorReport | None) -> None:
        self.seconds["end"] = time.monotonic()
        report = RankReport(
            rank=self.rank,
            pid=os.getpid(),
            outcome=outcome,
            phase=self.current,
            phases=self.seconds,
            reason=reason,
            error=error,
            observations=self.context.observations,
            fingerprints=self.context.watch.found,
            peak_memory_bytes=_peak_memory_bytes(self.plan),
            body_s=self.body_s,
            cpu_s=self.cpu_s,
            busy_s=self.busy_s,
            software=_software() if self.rank == 0 else {},
        )
        target = Path(self.plan.directory) / f"rank{self.rank}.json"
        draft = target.with_suffix(".tmp")
        try:
            draft.write_bytes(msgspec.json.encode(report))
            draft.rename(target)
        except OSError as trouble:
            what = f"{error.kind}: {error.message[:200]}; " if error else ""
            self.control.send("failed", f"{what}cannot write its report: {trouble.strerror or trouble} ({target})")
            time.sleep(HOLD_S)
            os._exit(1)

    def _leave_group(self) -> None:
        """Leave the group the safe way for its backend.

        A gloo group ends with its process: destroying it waits 10 ms a rank for an event-loop tick and can deadlock
        with a live reducer (torch 2.13). NCCL communicators are destroyed as their documentation asks.
        """
        if dist.is_initialized() and dist.get_backend() not in ("gloo", "fake"):
            gc.collect()
            dist.destroy_process_group()


def _take_environment(plan: LaunchPlan) -> None:
    contract = {name: os.environ[name] for name in CONTRACT if name in os.environ}
    os.environ.clear()
    os.environ.update(variables_from_wire(plan.variables))
    os.environ.update(contract)
    if plan.device == "cuda":
        _arm_nccl(plan)
    sys.path[:] = plan.python_path
    os.chdir(plan.working_dir)
    multiprocessing.set_start_method(None, force=True)  # a forked rank would hand on the forkserver's to DataLoaders
    sockets = Path(plan.directory) / SOCKETS_FOLDER
    if len(os.fsencode(sockets)) <= LONGEST_SOCKETS_FOLDER:
        sockets.mkdir(mode=0o700, exist_ok=True)
        multiprocessing.current_process()._config["tempdir"] = str(sockets)  # type: ignore[attr-defined] # no public way


def _arm_nccl(plan: LaunchPlan) -> None:
    """Let NCCL leave evidence of a hang, and several ranks on one GPU pose as hosts of their own (NCCL_HOSTID)."""
    record = str(Path(plan.directory) / "nccl-flight-")
    settings = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}  # the latter before torch 2.9
    settings |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    settings |= {"TORCH_FR_DUMP_TEMP_FILE": record, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": record}
    if plan.shares_gpu:
        settings |= {"NCCL_HOSTID": f"distbench-{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo"}
        settings |= {"NCCL_IB_DISABLE": "1", "NCCL_MAX_CTAS": "2"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _take_output(path: Path) -> None:
    """Send stdout and stderr, of Python and of C, to the rank's log."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _flush_output() -> None:
    """Ranks end without finalising: what Python and C still hold would be lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed or replaced by the body
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _take_terminal() -> None:
    """Use the terminal that the control line has handed over, and let its Ctrl-C reach a debugger."""
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _forbid_breakpoints(rank: int, attached: int | None) -> None:
    """Without a terminal pdb reads an empty file and quits: say what to do, or pass over it for the attached rank."""

    def hook(*args: object, **options: object) -> None:
        del args, options
        if attached is None:
            raise RuntimeError(
                f"breakpoint() in rank {rank}, which has no terminal: run it again with --distbench-attach {rank}"
            )

    sys.breakpointhook = hook


def _take_signals(stacks: Path) -> None:
    """Lead a process group of our own, die by default on the usual signals, show the stacks when asked and at SIGTERM.

    SIGTERM comes from the elastic agent when another rank has died: what this one was waiting for explains it.
    """
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=True)
    file = open(stacks, "w")  # noqa: SIM115 open for life
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)


def _join_group(plan: LaunchPlan, context: RankContext) -> None:
    timeout = timedelta(seconds=plan.timeout_s * GROUP_SHARE)
    if plan.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=context.rank, world_size=context.world_size)
        return
    store, rank, world_size = next(rendezvous("env://", timeout=timedelta(seconds=plan.timeout_s * STORE_SHARE)))
    dist.init_process_group(
        plan.backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=context.device if plan.device == "cuda" else None,
    )


def _run_script(plan: LaunchPlan) -> None:
    path = plan.body.file
    sys.argv = [path, *plan.body.arguments]
    sys.path.insert(0, str(Path(path).parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def _classify(raised: BaseException) -> tuple[Outcome, str, ErrorReport]:
    """Tell a skip or xfail (of pytest or unittest, neither imported here) from a failure."""
    kind = type(raised)
    skipped = kind.__name__ in ("Skipped", "SkipTest", XFAILED) and kind.__module__ in (
        "builtins",
        "_pytest.outcomes",
        "unittest.case",
    )
    chain = _chain(raised)
    # A ``finally`` that meets a collective raises on top of what went wrong: that is what must be told.
    told = chain[-1] if _is_torchs(raised) and not _is_torchs(chain[-1]) else raised
    text = _text_of(told)
    trace = "".join(traceback.format_exception(kind, raised, _user_frames(raised)))
    with contextlib.suppress(Exception):  # a full disk, a stream the body has closed
        sys.stderr.write(trace)
    report = ErrorReport(
        kind=type(told).__name__,
        message=_cut(text),
        traceback=_cut(trace),
        raised_at=time.monotonic(),
        torch_errors=[_cut(f"{type(e).__name__}: {_text_of(e)}") for e in chain if _is_torchs(e)],
        began_in_torch=_is_torchs(chain[-1]),
    )
    return ("skipped" if skipped else "failed"), _cut(text) if skipped else "", report


def _chain(raised: BaseException) -> list[BaseException]:
    """An exception, what it came from, and so on to the first."""
    found = [raised]
    while (before := found[-1].__cause__ or found[-1].__context__) is not None and before not in found:
        found.append(before)
    return found


def _is_torchs(raised: BaseException) -> bool:
    """Whether torch raised it: by its class, or by the file it was raised in."""
    trace, file = raised.__traceback__, ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return type(raised).__module__.partition(".")[0] == "torch" or "/torch/" in file


def _text_of(raised: BaseException) -> str:
    if isinstance(raised, SystemExit) and not raised.code:
        return (
            f"{raised.code}: a body returns when it is done; a script that exits is run with distbench.run('script.py')"
        )
    try:
        return str(raised)
    except BaseException as broken:  # noqa: BLE001 an exception whose __str__ raises must not hide the failure
        return f"<{type(raised).__name__} whose text cannot be made: {type(broken).__name__}>"


def _cut(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate pair has no place in a file
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _user_frames(raised: BaseException) -> TracebackType | None:
    """The traceback from the first frame that is not ours; none for a body's file that could not even be compiled."""
    trace = raised.__traceback__
    here = str(Path(__file__).parent)
    first = trace
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((here, "<frozen ", *_MACHINERY)) and _REWRITING not in name:
            return trace
        trace = trace.tb_next
    return None if isinstance(raised, SyntaxError) else first


def _own_cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _peak_memory_bytes(plan: LaunchPlan) -> int:
    """On CUDA the most its allocator handed out; else the largest resident size, which repeats to half a per cent."""
    if plan.device == "cuda" and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(
        sum(times)
        - times.idle
        - getattr(times, "iowait", 0.0)
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def _software() -> dict[str, str]:
    import platform

    import numpy

    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
