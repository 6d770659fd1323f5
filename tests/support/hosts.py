"""Two hosts that are namespaces of this one: their processes, network, files and clocks are their own.

They are joined by a cable. Ranks that live there are out of reach for pytest: it cannot name their processes, connect
to them, or see what they write. As a script this lays the cable and keeps the hosts until its stdin closes:
``python hosts.py FOLDER HIDDEN``.

In a conftest, ``LAUNCHERS["hosts"] = hosts.row()`` makes the hosts that :data:`VARIABLE` names a launcher's.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pytest_distbench.hosts.relayed import Host, RelayedSite
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import LauncherKind
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import SESSION_VARIABLE

VARIABLE = "DISTBENCH_TEST_HOSTS"
"""The hosts, as JSON."""
NETWORK = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
AHEAD_S = (5_000.0, 70_000.0)
"""How far the clocks of the hosts are ahead of this one's."""

_INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(flush=True); signal.pause()"
"""The first process of a host: whoever is adopted by it is not left a zombie."""
_ports = itertools.count(29500)
_SERVE = "import socket, sys; from pytest_distbench.hosts.relay import serve; serve(socket.socket(fileno={}))"


@dataclass(frozen=True)
class Namespaces:
    """A host: its address, the process id of its init as seen from outside, and a folder that only it sees."""

    name: str
    address: str
    init: int
    folder: str

    def command(self, *words: str) -> list[str]:
        entered = ("--user", "--net", "--mount", "--pid", "--uts", "--time")
        return ["nsenter", f"--target={self.init}", *entered, "--preserve-credentials", "--", *words]

    def run(self, *words: str) -> str:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=True).stdout

    def processes(self) -> list[str]:
        """Command lines of what lives there, but for the first process."""
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.init and os.readlink(f"/proc/{process.pid}/ns/pid") == space:
                    found.append(" ".join(process.cmdline()) or process.name())
            except (OSError, psutil.Error):
                continue
        return found

    def files(self) -> list[str]:
        return self.run("ls", "-A", self.folder).split()


class HostsLauncher:
    """A launcher whose ranks live on other hosts, in equal parts."""

    name = "hosts"

    def __init__(self, session: str, hosts: Sequence[Namespaces]) -> None:
        self.session = session
        self.hosts = hosts

    def prepare(self, variables: dict[str, str]) -> None:
        pass

    def open(self, plan: LaunchPlan) -> RelayedSite:
        share = -(-plan.processes // len(self.hosts))
        ranks = [range(plan.processes)[i * share : (i + 1) * share] for i in range(len(self.hosts))]
        hosts = []
        for host, those in zip(self.hosts, ranks, strict=True):
            if those:
                line, keeper = self._start_relay(host, plan.files.launcher_log)
                hosts.append(Host(host.name, line=line, keeper=keeper, ranks=those))
        return RelayedSite(plan, hosts, meeting_point=(self.hosts[0].address, next(_ports)))

    def leftovers(self) -> list[psutil.Process]:
        return processes.find_marked(SESSION_VARIABLE, self.session)

    def close(self) -> None:
        pass

    def _start_relay(self, host: Namespaces, log: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        inherited = {**os.environ, SESSION_VARIABLE: self.session, "TMPDIR": host.folder}
        variables = {**inherited, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return start_relay(variables, log, enter=host.command())


def start_relay(
    variables: Mapping[str, str], log: Path, *, enter: Sequence[str] = ()
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A relay in a process of its own, and this side's end of its connection, a socket pair.

    ``variables``: its environment. ``log`` gets what it prints. ``enter``: words before its command, to run it
    elsewhere.
    """
    ours, theirs = socket.socketpair()
    with theirs, log.open("ab") as out:
        process = subprocess.Popen(
            [*enter, sys.executable, "-c", _SERVE.format(theirs.fileno())],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return ours, process


def row() -> LauncherKind:
    """A row of the table of launchers, for the hosts that the environment names."""
    hosts = [Namespaces(**host) for host in json.loads(os.environ[VARIABLE])]
    return LauncherKind(
        help="ranks on other hosts",
        make=lambda setup: HostsLauncher(setup.session, hosts),
        hosts="many",
        holds_two=True,
        is_spaced=False,
        variables=NETWORK,
    )


def start(folder: Path, hidden: Path) -> tuple[subprocess.Popen[str], list[Namespaces]]:
    """Start two hosts, which end when the stdin of the returned process closes. Raises OSError if the kernel refuses.

    ``hidden``: a folder of this host that the second one does not see.
    """
    process = subprocess.Popen(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--net",
            "--mount",
            sys.executable,
            __file__,
            str(folder),
            str(hidden),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise OSError(process.communicate()[1].strip())
    return process, [Namespaces(**host) for host in json.loads(line)]


def _main(folder: Path, hidden: Path) -> None:
    inits: list[subprocess.Popen[bytes]] = []
    try:
        hosts = []
        for index, ahead_s in enumerate(AHEAD_S):
            name, private = f"host{index}", folder / f"host{index}"
            private.mkdir()
            inits.append(_start_init(name, private, hidden if index else None, ahead_s))
            [init] = psutil.Process(inits[-1].pid).children()
            hosts.append(Namespaces(name, f"10.9.0.{index + 1}", init.pid, str(private)))
        first, second = (str(host.init) for host in hosts)
        _run("ip", "link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for host in hosts:
            there = ("nsenter", f"--target={host.init}", "--net", "ip")  # of our own user namespace, as this process is
            _run(*there, "address", "add", f"{host.address}/24", "dev", "eth0")
            _run(*there, "link", "set", "eth0", "up")
        print(json.dumps([asdict(host) for host in hosts]), flush=True)
        sys.stdin.read()
    finally:
        for init in inits:
            init.kill()  # and what it has started, --kill-child
            init.wait()


def _start_init(name: str, private: Path, hidden: Path | None, ahead_s: float) -> subprocess.Popen[bytes]:
    hide = f"mount -t tmpfs none {hidden} && " if hidden is not None else ""
    begin = (
        f"hostname {name} && mount -t tmpfs none {private} && {hide}ip link set lo up && "
        f"exec {sys.executable} -c '{_INIT}'"
    )
    clocks = (f"--monotonic={ahead_s:.0f}", f"--boottime={ahead_s:.0f}")
    spaces = ("--net", "--mount", "--mount-proc", "--pid", "--uts", "--time", *clocks, "--fork", "--kill-child")
    init = subprocess.Popen(["unshare", *spaces, "sh", "-c", begin], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert init.stdout is not None
    if not init.stdout.readline():
        raise SystemExit(f"{name} did not start")
    return init


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
