"""What can go wrong in a rank, as bodies, each with what its report has to say. Rank 1 is the culprit, the others wait.

Used by the conformance tests and by ``soak.py``. Every body works with two or more ranks on the CPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pytest_distbench import RankContext

CULPRIT = 1
FOREVER_S = 1000.0
_FORKS = re.compile(r"hosts\.slurm")
_OF_THIS_HOST = re.compile(r"starters\.warm")
_RELAY = re.compile(r"hosts\.(relay|slurm)|starters\.(warm|torchrun)")
"""In the command line of what starts the ranks of another host, and waits for them, or of what that was forked from."""
PHASE_VARIABLE = "DISTBENCH_FAULT_PHASE"
"""``import:hang``, ``rendezvous:kill``: what rank 1 does when it comes to that phase, before any body runs."""

LEFT = "fault-left"
LEFT_VARIABLE = "DISTBENCH_FAULT_LEFT"
"""How the names of folders and of shared memory begin that a rank leaves to its exit handlers."""


@dataclass(frozen=True)
class Fault:
    """One way to go wrong.

    Attributes:
        body: what every rank runs.
        reason: regular expression for the launch's reason; empty: the launch passes.
        phase: see :data:`PHASE_VARIABLE`.
        is_hang: ends at the time-out.
        waits: ends at a collective's time-out, which is part of the launch's.
        root_cause: rank that must be named first; None: any.
        remark: regular expression for what a launch that passes says nevertheless; empty: nothing.
        is_any_launchers: what is told comes from the rank and its files alone, whichever launcher started it, or what a
            launcher has to do with it is another fault's too.
    """

    body: Callable[[RankContext], object]
    reason: str
    phase: str = ""
    is_hang: bool = False
    waits: bool = False
    root_cause: int | None = CULPRIT
    remark: str = ""
    is_any_launchers: bool = False

    @property
    def name(self) -> str:
        return self.phase.replace(":", "_in_") if self.phase else self.body.__name__


def healthy(rank: RankContext) -> None:
    rank.barrier()
    rank.record("answer", 42, better="exact")


def raises(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise ValueError("bad number 42")
    _wait(rank)


def raises_after_a_collective(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        raise KeyError("gradient")
    _wait(rank)


def raises_what_cannot_be_pickled(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise _UnpicklableError("no copy of me")
    _wait(rank)


def raises_what_cannot_be_shown(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise _UnshowableError
    _wait(rank)


def raises_a_huge_message(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise ValueError("huge " + "x" * 10_000_000)
    _wait(rank)


def asserts(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        value = 6
        assert value == 7, "seven was wanted"
    _wait(rank)


def is_interrupted(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise KeyboardInterrupt
    _wait(rank)


def leaves_with_zero(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        sys.exit(0)
    _wait(rank)


def raises_like_a_timeout(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise TimeoutError("timed out waiting for the data server")
    _wait(rank)


def raises_half_a_surrogate_pair(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise ValueError("bad \udcff")
    _wait(rank)


def exits(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        os._exit(3)
    _wait(rank)


def is_killed(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    _wait(rank)


def is_terminated(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGTERM)
    _wait(rank)


def is_killed_in_teardown(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        import torch.distributed as dist

        dist.is_initialized = _kill_self


def crashes(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        ctypes.string_at(0)
    _wait(rank)


def aborts(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        os.abort()
    _wait(rank)


def sums_other_sizes(rank: RankContext) -> None:
    import torch
    import torch.distributed as dist

    _wait(rank)
    dist.all_reduce(torch.ones(1 if rank.rank == CULPRIT else 6))


def gathers_another_dtype(rank: RankContext) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(16, dtype=torch.float32 if rank.rank == CULPRIT else torch.float64)
    dist.all_gather([torch.empty_like(x) for _ in range(rank.world_size)], x)


def takes_a_step_less(rank: RankContext) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    for _ in range(2 if rank.rank == CULPRIT else 3):
        model(torch.ones(2, 64)).sum().backward()
    dist.all_reduce(torch.ones(1))


def runs_out_of_memory(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
        bytearray(2**30)
    _wait(rank)


def hangs(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        time.sleep(FOREVER_S)
    _wait(rank)


def leaves_early(rank: RankContext) -> None:
    if rank.rank != CULPRIT:
        _wait(rank)


def calls_in_another_order(rank: RankContext) -> None:
    import torch
    import torch.distributed as dist

    calls = [lambda: dist.all_reduce(torch.ones(8)), lambda: dist.broadcast(torch.ones(8), src=0)]
    for call in calls if rank.rank == CULPRIT else reversed(calls):
        call()


def hangs_with_signals_blocked(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        time.sleep(FOREVER_S)
    _wait(rank)


def hangs_in_c(rank: RankContext) -> None:
    """A C sleep returns at the first signal: asking for the stacks wakes it."""
    if rank.rank == CULPRIT:
        ctypes.CDLL(None).sleep(int(FOREVER_S))
    _wait(rank)


def stops(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGSTOP)
    _wait(rank)


def stops_who_waits_for_it(rank: RankContext) -> None:
    """Of the warm launcher the parent; of torchrun the guardian; of another host's its relay."""
    import psutil

    healthy(rank)
    if rank.rank == CULPRIT:
        above = psutil.Process().parents()
        next((process for process in above if _RELAY.search(" ".join(process.cmdline()))), above[1]).suspend()


def hangs_in_teardown(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        import torch.distributed as dist

        group: Any = dist.ProcessGroup
        group._get_backend = _sleep  # is asked for when the group is left


def prints_everywhere(rank: RankContext) -> None:
    print("stray output of Python", rank.rank)
    os.write(2, b"stray output of the system\n")
    os.write(1, b'{"kind": "done", "rank": 0}\n')
    healthy(rank)


def prints_100_megabytes(rank: RankContext) -> None:
    libc = ctypes.CDLL(None)
    block = b"." * 2**20
    for _ in range(100 if rank.rank == CULPRIT else 1):
        libc.write(1, block, len(block))
    healthy(rank)


def forks(rank: RankContext) -> None:
    """One child runs on as if it were the rank, one stays behind."""
    if rank.rank == CULPRIT and os.fork() and not os.fork():
        os.setsid()
        time.sleep(FOREVER_S)
    if rank.rank == CULPRIT and os.getppid() == _PARENTS.get("rank"):
        return
    healthy(rank)


def leaves_a_child(rank: RankContext) -> None:
    import subprocess

    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"], start_new_session=True)
    healthy(rank)


def leaves_a_child_without_our_mark(rank: RankContext) -> None:
    import subprocess

    sleeper = [sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"]
    subprocess.Popen(sleeper, env={})
    subprocess.Popen(sleeper, env={}, start_new_session=True)
    healthy(rank)


def exits_while_a_child_holds_its_files(rank: RankContext) -> None:
    """The child keeps every connection of the rank open: only the end of the process itself tells."""
    if rank.rank == CULPRIT:
        if os.fork() == 0:
            os.setsid()
            time.sleep(FOREVER_S)
        os._exit(0)
    _wait(rank)


def hangs_in_a_group_of_its_own(rank: RankContext) -> None:
    """Groups have time-outs of their own, of half an hour; the default group's numbers are the same on both ranks."""
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, CULPRIT], group_desc="pair")
    _wait(rank)
    if rank.rank == CULPRIT:
        time.sleep(FOREVER_S)
    if rank.rank == 0:
        dist.all_reduce(torch.ones(8, device=rank.device), group=group)


def hangs_while_another_receives(rank: RankContext) -> None:
    """Torch records neither send nor recv, and their group has half an hour."""
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, CULPRIT])
    _wait(rank)
    if rank.rank == CULPRIT:
        time.sleep(FOREVER_S)
    if rank.rank == 0:
        dist.recv(torch.ones(8, device=rank.device), src=CULPRIT, group=group)


def hangs_before_a_monitored_barrier(rank: RankContext) -> None:
    """Rank 0 looks out for half an hour; the other ranks wait for its answer."""
    import torch.distributed as dist

    _wait(rank)
    if rank.rank == CULPRIT:
        time.sleep(FOREVER_S)
    dist.monitored_barrier(timeout=timedelta(minutes=30))


def hangs_and_peers_say_it_in_their_words(rank: RankContext) -> None:
    """The usual shapes of a training's main function: what torch raised is only what it began with."""
    if rank.rank == CULPRIT:
        time.sleep(FOREVER_S)
    try:
        _wait(rank)
    except RuntimeError as error:
        if rank.rank % 2:
            raise ValueError("training failed") from error
        sys.exit(1)


def raises_and_cleans_up_together(rank: RankContext) -> None:
    """What ``finally`` meets on the way out is not what went wrong."""
    try:
        if rank.rank == CULPRIT:
            raise ValueError("root cause")
        _wait(rank)
    finally:
        rank.barrier()


def becomes_another_program(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        os.execv("/bin/sleep", ["sleep", str(FOREVER_S)])
    _wait(rank)


def hangs_without_the_handler(rank: RankContext) -> None:
    """Asking this rank for its stacks by the signal would kill it."""
    if rank.rank == CULPRIT:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        time.sleep(FOREVER_S)
    _wait(rank)


def destroys_its_group(rank: RankContext) -> None:
    """With a model that outlives the group: torch's own end of that can hang."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    for _ in range(20):
        model(torch.ones(8, 20)).sum().backward()
    rank.record("answer", 42, better="exact")
    dist.destroy_process_group()


def cleans_up_at_exit(rank: RankContext) -> None:
    """What a process leaves to its end: folders, shared memory, locks, threads with work to do, handlers that fail."""
    import atexit
    import multiprocessing
    import tempfile
    import uuid
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing import shared_memory

    name = f"{os.environ.get(LEFT_VARIABLE, LEFT)}-{uuid.uuid4().hex}"
    _LEFT.append(tempfile.TemporaryDirectory(prefix=LEFT))
    _LEFT.append(shared_memory.SharedMemory(name, create=True, size=2**20))
    _LEFT.append(multiprocessing.get_context("spawn").Lock())
    ThreadPoolExecutor(1).submit(time.sleep, 0.2)
    atexit.register(lambda: 1 / 0)
    healthy(rank)


def hangs_at_exit(rank: RankContext) -> None:
    import atexit

    if rank.rank == CULPRIT:
        atexit.register(time.sleep, FOREVER_S)
    healthy(rank)


def raises_what_breaks_its_report(rank: RankContext) -> None:
    if rank.rank == CULPRIT:
        raise _HostileError from ValueError("first")
    _wait(rank)


def leaves_a_hook(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:

        def refuse(event: str, args: tuple[object, ...]) -> None:
            if event == "open" and args[1] == "w":
                raise RuntimeError("no files here")

        sys.addaudithook(refuse)


def leaves_pipes(rank: RankContext) -> None:
    """In the place of what pytest reads of this rank."""
    import atexit

    def replace(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    _wait(rank)
    if rank.rank == CULPRIT:
        log = Path(os.readlink("/proc/self/fd/1"))
        replace(log)
        replace(log.with_name(f"stacks{rank.rank}.txt"))
        atexit.register(replace, log.with_suffix(".json"))


def never_runs(rank: RankContext) -> object:
    """As a coroutine function under a decorator: that it is one shows only when it is called."""

    async def later() -> None:
        healthy(rank)

    return later()


def leaves_a_thread(rank: RankContext) -> None:
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
    healthy(rank)


def changes_everything(rank: RankContext) -> None:
    os.chdir("/")
    os.environ.clear()
    os.umask(0o777)
    sys.path.clear()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    healthy(rank)


def changes_everything_and_raises(rank: RankContext) -> None:
    changes_everything(rank)
    raises(rank)


def kills_the_group_above(rank: RankContext) -> None:
    """Kill the parent: that of the warm launcher, or torchrun itself."""
    _wait(rank)
    if rank.rank == CULPRIT:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(FOREVER_S)
    _wait(rank)


def kills_the_agent(rank: RankContext) -> None:
    """Of the warm launcher what keeps the stores, which was forked first."""
    import psutil

    _wait(rank)
    if rank.rank == CULPRIT:
        above = [(process, " ".join(process.cmdline())) for process in psutil.Process().parents()]
        agents = [process for process, line in above if _FORKS.search(line)]  # the last: others are forked
        relays = [process for process, line in above if _RELAY.search(line)]  # the first: what leads to it says so too
        torchruns = [process for process, line in above if "torch.distributed.run" in line]
        warm = [process.children() for process, line in above if _OF_THIS_HOST.search(line)]
        keepers = [min(children, key=psutil.Process.create_time) for children in warm]
        for process in keepers or agents[-1:] or relays[:1] or torchruns:
            process.kill()
        time.sleep(FOREVER_S)
    _wait(rank)


def loses_its_network(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        _ask_cluster("parts")
    _wait(rank)


def loses_its_node(rank: RankContext) -> None:
    _wait(rank)
    if rank.rank == CULPRIT:
        _ask_cluster("dies")
    _wait(rank)


HEALTHY = Fault(healthy, "")
_PASSES = ""
_MISMATCH = r"collectives do not match: rank 1 got "
LAUNCHER_DIED = (
    r"the launcher failed: (the process that starts|the process with|torchrun|host \w+: (its relay|torchrun)) "
)

FAULTS: tuple[Fault, ...] = (
    Fault(raises, r"rank 1 raised ValueError: bad number 42"),
    Fault(raises_after_a_collective, r"rank 1 raised KeyError: 'gradient'", is_any_launchers=True),
    Fault(raises_what_cannot_be_pickled, r"rank 1 raised _UnpicklableError: no copy of me", is_any_launchers=True),
    Fault(
        raises_what_cannot_be_shown,
        r"rank 1 raised _UnshowableError: <_UnshowableError whose text cannot be made",
        is_any_launchers=True,
    ),
    Fault(raises_a_huge_message, r"rank 1 raised ValueError: huge x{100}", is_any_launchers=True),
    Fault(asserts, r"rank 1 raised AssertionError: seven was wanted", is_any_launchers=True),
    Fault(is_interrupted, r"rank 1 raised KeyboardInterrupt", is_any_launchers=True),
    Fault(leaves_with_zero, r"rank 1 raised SystemExit: 0: a body returns when it is done", is_any_launchers=True),
    Fault(
        raises_like_a_timeout,
        r"rank 1 raised TimeoutError: timed out waiting for the data server",
        is_any_launchers=True,
    ),
    Fault(raises_half_a_surrogate_pair, r"rank 1 raised ValueError: bad ", is_any_launchers=True),
    Fault(exits, r"rank 1 exit code 3"),
    Fault(exits_while_a_child_holds_its_files, r"rank 1 (exit code 0|ended without a report)"),
    Fault(is_killed, r"rank 1 killed by SIGKILL"),
    Fault(is_terminated, r"rank 1 killed by SIGTERM", is_any_launchers=True),
    Fault(is_killed_in_teardown, r"rank 1 killed by SIGKILL", is_any_launchers=True),
    Fault(healthy, r"rank 1 killed by SIGKILL", phase="import:kill", is_any_launchers=True),
    Fault(healthy, r"rank 1 killed by SIGKILL", phase="rendezvous:kill", is_any_launchers=True),
    Fault(crashes, r"rank 1 killed by SIGSEGV", is_any_launchers=True),
    Fault(aborts, r"rank 1 killed by SIGABRT", is_any_launchers=True),
    Fault(
        sums_other_sizes,
        rf"{_MISMATCH}\d+ B for 4 B in all_reduce at faults\.py:\d+ in sums_",
        is_any_launchers=True,
    ),
    Fault(
        gathers_another_dtype,
        rf"{_MISMATCH}\d+ B for \d+ B in all_gather at faults\.py:\d+ in gathers_",
        is_any_launchers=True,
    ),
    Fault(
        takes_a_step_less,
        rf"{_MISMATCH}\d+ B for 4 B in all_reduce at faults\.py:\d+ in takes_",
        is_any_launchers=True,
    ),
    Fault(runs_out_of_memory, r"rank 1 raised MemoryError", is_any_launchers=True),
    Fault(hangs, r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs", is_hang=True),
    Fault(
        leaves_early,
        r"rank 1 ended without the collective that others waited for: rank 0 waited in all_reduce of float",
        is_hang=True,
        root_cause=None,
        is_any_launchers=True,
    ),
    Fault(
        calls_in_another_order,
        r"deadlock: rank 0 waited in .*; rank 1 waited in ",
        is_hang=True,
        root_cause=None,
        is_any_launchers=True,
    ),
    Fault(
        hangs_with_signals_blocked,
        r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs_with_sig",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(hangs_in_c, r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs_in_c", is_hang=True, is_any_launchers=True),
    Fault(
        hangs_in_a_group_of_its_own,
        r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs_in_a_.*; rank 0 waits in all_reduce .* in group pair",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        hangs_while_another_receives,
        r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs_while_another_receives; rank 0 waits in recv",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        hangs_before_a_monitored_barrier,
        r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs_before_a_mon\w*; rank 0 waits in monitored_barrier",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        hangs_and_peers_say_it_in_their_words,
        r"hung in body, .*: rank 1 at faults\.py:\d+ in hangs_and_peers.*; rank 0 waits in all_reduce",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(raises_and_cleans_up_together, r"rank 1 raised ValueError: root cause", waits=True, is_any_launchers=True),
    Fault(becomes_another_program, r"rank 1 closed its connection to pytest and went on"),
    Fault(
        hangs_without_the_handler,
        r"hung in body, .*: rank 1 (at faults\.py:\d+ in hangs_without|in phase body)",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        stops,
        r"hung in body, .*: rank 1 (at faults\.py:\d+ in stops|in phase body)",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        hangs_in_teardown,
        r"hung in teardown, .*: rank 1 at faults\.py:\d+ in _sleep",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        healthy,
        r"hung in import, .*: rank 1 at faults\.py:\d+ in act",
        phase="import:hang",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(
        healthy,
        r"hung in rendezvous, .*rank 1 at faults\.py:\d+ in act",
        phase="rendezvous:hang",
        is_hang=True,
        is_any_launchers=True,
    ),
    Fault(prints_everywhere, _PASSES, is_any_launchers=True),
    Fault(prints_100_megabytes, _PASSES, is_any_launchers=True),
    Fault(forks, _PASSES, is_any_launchers=True),
    Fault(leaves_a_child, _PASSES, is_any_launchers=True),
    Fault(leaves_a_child_without_our_mark, _PASSES),
    Fault(
        stops_who_waits_for_it,
        _PASSES,
        remark=r"the process \d+, which .* has been stopped \(SIGSTOP\)",
        is_any_launchers=True,
    ),
    Fault(
        leaves_a_thread,
        _PASSES,
        remark=r"rank 0, 1: threads it had started still ran \(Thread-\d+ \(sleep\)\)",
        is_any_launchers=True,
    ),
    Fault(destroys_its_group, _PASSES, is_any_launchers=True),
    Fault(cleans_up_at_exit, _PASSES, is_any_launchers=True),
    Fault(
        hangs_at_exit,
        _PASSES,
        remark=r"rank 1: its exit handlers were not done after 10 s",
        is_any_launchers=True,
    ),
    Fault(never_runs, r"rank \d raised BodyError: the body returned a cor", root_cause=None, is_any_launchers=True),
    Fault(raises_what_breaks_its_report, r"rank 1 raised _HostileError: <_HostileError whose", is_any_launchers=True),
    Fault(leaves_a_hook, r"rank 1 failed: cannot write its report: RuntimeError: no f", is_any_launchers=True),
    Fault(leaves_pipes, r"rank 1 (exit code 0|ended) without a report", is_any_launchers=True),
    Fault(changes_everything, _PASSES, is_any_launchers=True),
    Fault(changes_everything_and_raises, r"rank 1 raised ValueError: bad number 42", is_any_launchers=True),
    Fault(kills_the_group_above, LAUNCHER_DIED, root_cause=None),
    Fault(kills_the_agent, LAUNCHER_DIED, root_cause=None, is_any_launchers=True),  # torchrun's is the group above
)

NODE_LOST = r"the launcher failed: host \w+: its relay has been silent for "

ON_NODES: tuple[Fault, ...] = (
    Fault(stops_who_waits_for_it, NODE_LOST, root_cause=None),
    Fault(loses_its_network, LAUNCHER_DIED, root_cause=None),  # the connection breaks, or is silent for too long
    Fault(loses_its_node, LAUNCHER_DIED, root_cause=None),
)
"""What happens on the nodes of ``tests/support/slurm_cluster.py`` alone, or is told differently there."""


def known_under(launcher: str) -> tuple[Fault, ...]:
    """The faults that can happen under a launcher, as they are told there, and none."""
    from pytest_distbench.launch.starters import LAUNCHERS

    elsewhere = ON_NODES if LAUNCHERS[launcher].hosts == "many" else ()
    return (*{fault.name: fault for fault in (*FAULTS, *elsewhere, HEALTHY)}.values(),)


class _UnpicklableError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise TypeError("never")


class _UnshowableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class _HostileError(Exception):
    __module__ = 7  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise SystemExit(0)


_LEFT: list[object] = []
"""What lives as long as its process."""

_PARENTS = {"rank": os.getpid()}


def _wait(rank: RankContext) -> None:
    """A real collective of the backend under test."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(8, device=rank.device))
    if rank.device.type == "cuda":
        torch.cuda.synchronize()


def _ask_cluster(what: str) -> None:
    """Have it done to this node, and wait."""
    Path(os.environ["DISTBENCH_TEST_SLURM"], f"{socket.gethostname()}.{what}").touch()
    time.sleep(FOREVER_S)


def _sleep(*_: object) -> bool:
    time.sleep(FOREVER_S)
    return True


def _kill_self() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def _fail_in_phase() -> None:
    """Runs while this module is imported in a rank."""
    phase, _, what = os.environ.get(PHASE_VARIABLE, "").partition(":")
    if not phase or os.environ.get("RANK") != str(CULPRIT):
        return

    def act(*args: object, **options: object) -> None:
        del args, options
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(FOREVER_S)

    if phase == "import":
        act()
    else:
        import torch.distributed as dist

        dist.init_process_group = act


_fail_in_phase()
