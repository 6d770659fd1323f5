"""Ranks on the nodes of a Slurm allocation: a job step for each launch, with a relay on every node.

The relays connect to this process (``site/dial.py``): one ``srun`` starts all of them, and has no stream for each.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec
import psutil

from pytest_distbench.errors import ConfigurationError, LauncherError, show
from pytest_distbench.launch.logs import tail
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.describe import HostDescription
from pytest_distbench.launch.site.dial import SECRET_VARIABLE, Hello, keep_alive
from pytest_distbench.launch.site.relayed import Host, RelayedSite
from pytest_distbench.launch.starters.allocation import read_allocation
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS, SESSION_VARIABLE
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace

_CALL_S = 60.0
"""How long a step's processes may take to answer, and so much more for each hundred of nodes."""
_HELLO_BYTES = 4096
_LEAVE_S = 5.0


def describe(*, gpu: bool, platform: str | None) -> Environment:
    """What the nodes of the allocation are, from one step on all of them.

    Args:
        gpu: the ranks are to have GPUs.
        platform: the class of hardware that the user has named; None: that of the nodes, which must be one.

    Raises:
        ConfigurationError: they are of several classes, run other software, have no GPU, or do not tell.
    """
    allocation = read_allocation(os.environ)
    nodes = len(allocation.nodes)
    told = [sys.executable, "-m", "pytest_distbench.launch.site.describe", *(["--gpu"] if gpu else [])]
    try:
        done = subprocess.run(
            [*_srun(allocation.nodes), *told],
            env=_inherited(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_within_s(nodes),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"the nodes of job {allocation.job} do not say what they are within {_within_s(nodes):.0f} s: does srun "
            "--overlap hostname answer?"
        ) from None
    try:
        hosts = [msgspec.json.decode(line, type=HostDescription) for line in done.stdout.splitlines()]
    except msgspec.MsgspecError:
        hosts = []
    if done.returncode or len(hosts) != nodes:
        raise ConfigurationError(
            f"{len(hosts)} of {nodes} nodes of job {allocation.job} say what they are: {show(done.stderr.strip())}. "
            f"{sys.executable} and pytest-distbench have to be there under the same path, on a shared disk for one"
        )
    hosts.sort(key=lambda host: allocation.nodes.index(host.host))
    first = hosts[0].environment
    _refuse_differences(hosts, lambda found: found.software, "run other software")
    if platform is None:
        _refuse_differences(
            hosts, lambda found: found.platform, "are of several classes of hardware: take nodes of one (salloc "
            "--constraint=), or name the class of all of them, --distbench-platform NAME",
        )  # fmt: skip
    if gpu and first.gpu_host is None:
        raise ConfigurationError(
            f"--gpu: no GPU is visible on {hosts[0].host} of job {allocation.job}: allocate some, as salloc "
            "--gpus-per-node=4; with no partition that has any (sinfo -o '%P %G'), leave --gpu out"
        )
    return first if platform is None else replace(first, platform=platform)


def _refuse_differences(hosts: Sequence[HostDescription], of: Callable[[Environment], object], told: str) -> None:
    """Refuse nodes of which something differs that has to be one."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(show(of(host.environment)), []).append(host.host)
    if len(found) > 1:
        shown = "; ".join(f"{', '.join(names[:4])}: {what}" for what, names in found.items())
        raise ConfigurationError(f"the nodes of the allocation {told}: {shown}")


class SlurmLauncher:
    """Starts a job step per launch."""

    name = "slurm"

    def __init__(self, session: str) -> None:
        self.session = session
        self.allocation = read_allocation(os.environ)

    def prepare(self, variables: dict[str, str]) -> None:
        """Nothing can be prepared."""

    def open(self, plan: LaunchPlan) -> RelayedSite:
        layout = self.allocation.layout(plan.processes, on_gpus=plan.device == "cuda")
        nodes = self.allocation.nodes[: len(layout)]
        step = Step(nodes, log=plan.files.launcher_log, variables=plan.variables, session=self.session)
        calls: dict[str, Call] = {}
        try:
            calls = step.answer()
            first = calls[nodes[0]].hello
            hosts = [Host(name=node, relay=calls[node], ranks=ranks) for node, ranks in zip(nodes, layout, strict=True)]
        except BaseException:
            for call in calls.values():
                call.hang_up()
            step.cancel()
            raise
        return RelayedSite(plan, hosts, meeting_point=(first.address, first.port))

    def leftovers(self) -> list[psutil.Process]:
        """What there is on this host: the sruns of steps that have not ended."""
        return processes.find_marked(SESSION_VARIABLE, self.session)

    def close(self) -> None:
        """End the steps that are still there."""
        processes.kill(self.leftovers())


class Call:
    """A relay that has called: its connection, and the step that keeps it alive."""

    stderr: IO[bytes] | None = None

    def __init__(self, line: socket.socket, hello: Hello, step: subprocess.Popen[bytes]) -> None:
        self.hello = hello
        self.pid = step.pid
        self.stdin: IO[bytes] | None = line.makefile("wb")
        self.stdout: IO[bytes] | None = line.makefile("rb")  # of which only the descriptor is used
        self._step = step
        line.close()  # once both files are

    def hang_up(self) -> None:
        """Close the connection, which ends the relay."""
        for file in filter(None, (self.stdin, self.stdout)):
            file.close()

    def wait(self, timeout: float | None = None) -> int:
        return self._step.wait(timeout)

    def kill(self) -> None:
        _cancel(self._step)


class Step:
    """One ``srun`` that starts a relay on each node."""

    def __init__(self, nodes: Sequence[str], *, log: Path, variables: Mapping[str, str], session: str) -> None:
        self._nodes = nodes
        self._log = log
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("", 0), backlog=len(nodes))
        port = self._listener.getsockname()[1]
        relay = [sys.executable, "-m", "pytest_distbench.launch.site.dial", str(port), *_addresses()]
        inherited = {**variables, **NO_REVERSE_DNS, SESSION_VARIABLE: session, SECRET_VARIABLE: self._secret}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*_srun(nodes), "--label", *relay],
                env=_inherited(inherited),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def answer(self) -> dict[str, Call]:
        """The relays, by node, once all have called.

        Raises:
            LauncherError: one has not, in time, or the step has ended.
        """
        calls: dict[str, Call] = {}
        try:
            self._take_calls(calls)
        except BaseException:
            for call in calls.values():
                call.hang_up()
            raise
        return calls

    def _take_calls(self, calls: dict[str, Call]) -> None:
        within_s = _within_s(len(self._nodes))
        deadline = time.monotonic() + within_s
        ended = os.pidfd_open(self.process.pid)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, ended)
            stack.enter_context(self._listener)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(ended, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while missing := [node for node in self._nodes if node not in calls]:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if any(key.fd == ended for key, _ in ready):
                    raise LauncherError(f"the step has ended before its relays called: {self._said()}")
                if not ready:
                    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
                    raise LauncherError(
                        f"no relay has called from {', '.join(missing[:4])}{more} within {within_s:.0f} s: "
                        f"{self._said()}. Is the node up (sinfo), and does it reach this host?"
                    )
                line, _ = self._listener.accept()
                hello = self._hello(line)
                if hello is None or hello.host not in missing:
                    line.close()  # a stranger
                else:
                    calls[hello.host] = Call(line, hello, self.process)

    def cancel(self) -> None:
        """End the step, however far it is."""
        self._listener.close()
        _cancel(self.process)

    def _hello(self, line: socket.socket) -> Hello | None:
        line.settimeout(_LEAVE_S)
        said = b""
        try:
            while not said.endswith(b"\n") and len(said) < _HELLO_BYTES and (byte := line.recv(1)):
                said += byte  # and not what follows, which is the relay's
            hello = msgspec.json.decode(said, type=Hello)
        except (OSError, msgspec.MsgspecError):
            return None
        line.settimeout(None)
        keep_alive(line)
        return hello if secrets.compare_digest(hello.secret, self._secret) else None

    def _said(self) -> str:
        return show(tail(self._log, lines=5).strip() or "srun said nothing", longest=600)


_OF_THE_BATCH = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST", "SLURM_MEM_PER_CPU")
"""What the allocation's own step was given, and a step of ours would take over."""


def _within_s(nodes: int) -> float:
    """How long a process on each of so many nodes may take to start and answer."""
    return _CALL_S * (1 + nodes / 100)


def _srun(nodes: Sequence[str]) -> list[str]:
    """Starts one process on each of the nodes, beside whatever runs there."""
    return [
        "srun", "--overlap", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}", "--distribution=block", "--cpu-bind=none", "--mpi=none", "--input=none",
        "--unbuffered", "--kill-on-bad-exit=0", "--export=ALL",
    ]  # fmt: skip


def _inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Of a step's processes: as here, and they find this package."""
    kept = {name: value for name, value in variables.items() if name not in _OF_THE_BATCH}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _addresses() -> list[str]:
    """Where nodes may reach this host: by the name that they know it by, or an address."""
    names = dict.fromkeys([os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), socket.gethostname(), *_interfaces()])
    return [name for name in names if name]


def _interfaces() -> list[str]:
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and not name.startswith("lo")
    ]


def _cancel(step: subprocess.Popen[bytes]) -> None:
    """What srun makes of SIGTERM: it ends the step's tasks, and then itself."""
    if step.poll() is None:
        step.send_signal(signal.SIGTERM)
        try:
            step.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()
