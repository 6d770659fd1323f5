"""What one command of this host starts on several others, and what each of them says first when it has called back.

They connect to this process (``site/dial.py``): the command has no stream for each.
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
from typing import IO, TypeVar

import msgspec
import psutil

from pytest_distbench.errors import LauncherError, show
from pytest_distbench.launch.logs import tail
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.descriptors import check_calls
from pytest_distbench.launch.site.dial import SECRET_VARIABLE, Caller, Hello, keep_alive
from pytest_distbench.launch.site.hop import Host
from pytest_distbench.launch.site.relayed import RelayedSite
from pytest_distbench.launch.starters.contract import SESSION_VARIABLE
from pytest_distbench.records.plan import LaunchPlan

CALL_S = 60.0
"""How long processes may take to start and call, and so much more for each hundred of hosts."""
_MOST_BYTES = 2**18
"""Of what a process says first."""
_ONE_LOOK_UP = {"RES_OPTIONS": "attempts:1"}
"""A name of this host that DNS does not answer for costs a caller one time-out, before it tries an address."""
_LEAVE_S = 5.0
_LOOK_S = 0.02

_Said = TypeVar("_Said", bound=Caller)


class Call:
    """A relay that has called: its connection, and the command that keeps it alive."""

    stderr: IO[bytes] | None = None

    def __init__(self, line: socket.socket, hello: Hello, command: subprocess.Popen[bytes]) -> None:
        self.hello = hello
        self.pid = command.pid
        self.stdin: IO[bytes] | None = line.makefile("wb")
        self.stdout: IO[bytes] | None = line.makefile("rb")  # of which only the descriptor is used
        self._command = command
        line.close()  # once both files are

    def hang_up(self) -> None:
        """Close the connection, which ends the relay."""
        for file in filter(None, (self.stdin, self.stdout)):
            file.close()

    def poll(self) -> int | None:
        return self._command.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._command.wait(timeout)

    def kill(self) -> None:
        cancel(self._command)


class Callers:
    """The processes that one command starts, one on each host.

    Args:
        module: of this package, that they run; it gets the port and the addresses of this process.
        words: more words for it.
        command: makes the command of this host from what is to run on each of the others, and its variables.
        environment: of the command; it has those variables too.
        count: of the hosts.
        names: of them; empty: they are not known before.
        log: gets what the command prints.
        session: cookie of all that is started.
        advice: for who waits for a call that does not come.

    Raises:
        LauncherError: this process may not have so many connections.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        command: Callable[[Sequence[str], Mapping[str, str]], Sequence[str]],
        environment: Mapping[str, str],
        count: int,
        names: Sequence[str] = (),
        log: Path,
        session: str,
        advice: str,
    ) -> None:
        check_calls(count)
        self._count = count
        self._names = names
        self._log = log
        self._advice = advice
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("", 0), backlog=count)
        port = self._listener.getsockname()[1]
        variables = {
            **_ONE_LOOK_UP,
            SESSION_VARIABLE: session,
            SECRET_VARIABLE: self._secret,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._words = command([sys.executable, "-m", module, str(port), *addresses(), *words], variables)
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self._words,
                env={**environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def relays(self) -> list[Call]:
        """The relays, host by host, once all have called.

        Raises:
            LauncherError: one has not, in time, or the command has ended.
        """
        with contextlib.ExitStack() as stack:
            taken = self._take(Hello, stack)
            stack.pop_all()
        return [Call(line, hello, self.process) for hello, line in self._in_order(taken)]

    def descriptions(self, kind: type[_Said]) -> list[_Said]:
        """What all have said that end when they have said it, host by host.

        Raises:
            LauncherError: these are more hosts than were asked for, or fewer, or it takes too long.
        """
        with contextlib.ExitStack() as stack:
            return [said for said, _ in self._in_order(self._take(kind, stack, until_the_end=True))]

    def cancel(self) -> None:
        """End the command, however far it is."""
        self._listener.close()
        cancel(self.process)

    def _take(
        self, kind: type[_Said], open_lines: contextlib.ExitStack, *, until_the_end: bool = False
    ) -> dict[str, tuple[_Said, socket.socket]]:
        deadline = time.monotonic() + within_s(self._count)
        taken: dict[str, tuple[_Said, socket.socket]] = {}
        with contextlib.ExitStack() as stack:
            ended = os.pidfd_open(self.process.pid)
            stack.callback(os.close, ended)
            stack.enter_context(self._listener)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(ended, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while until_the_end or len(taken) < self._count:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if not ready:
                    raise LauncherError(
                        f"{self._who_called(taken)} within {within_s(self._count):.0f} s: {self._printed()}. "
                        f"{self._advice}"
                    )
                if self._listener in ready:
                    line = open_lines.enter_context(self._listener.accept()[0])
                    if (said := hear(line, kind, self._secret)) is None:
                        line.close()  # a stranger
                        continue
                    self._check(said, taken)
                    taken[said.host] = said, line
                elif until_the_end and len(taken) == self._count:
                    break
                else:
                    raise LauncherError(
                        f"{self._words[0]} has ended (exit code {self.process.wait()}) before all hosts called; "
                        f"{self._who_called(taken)}: {self._printed()}. {self._advice}"
                    )
        return taken

    def _check(self, said: Caller, taken: Mapping[str, object]) -> None:
        """Refuse who was started where nobody was wanted."""
        if self._names and said.host not in self._names:
            raise LauncherError(f"{said.host} has called, which is none of {', '.join(self._names)}")
        if said.host in taken:
            raise LauncherError(
                f"{self._words[0]} has started two processes on {said.host}; wanted one on each of {self._count} hosts"
            )
        if len(taken) == self._count:
            raise LauncherError(
                f"{self._words[0]} has started processes on {', '.join([*taken, said.host])}; wanted {self._count}"
            )

    def _who_called(self, taken: Mapping[str, object]) -> str:
        missing = [name for name in self._names if name not in taken]
        of = f" ({', '.join(taken)})" if taken else ""
        told = f"{len(taken)} of {self._count} hosts have called{of}"
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        return f"{told}, and not {', '.join(missing[:4])}{more}" if missing else told

    def _in_order(self, taken: Mapping[str, tuple[_Said, socket.socket]]) -> list[tuple[_Said, socket.socket]]:
        return [taken[name] for name in self._names or sorted(taken)]

    def _printed(self) -> str:
        printed = tail(self._log, lines=5).strip().replace(self._secret, "***")
        return show(printed or f"{self._words[0]} said nothing", longest=600)


def open_site(plan: LaunchPlan, layout: Sequence[range], start: Callable[..., Callers]) -> RelayedSite:
    """The site of a launch, whose relays are started.

    Args:
        plan: of the launch.
        layout: the ranks of each host.
        start: starts a relay on each; takes the arguments of :class:`Callers` that are the same for all.

    Raises:
        LauncherError: they have not all called.
    """
    callers = start("pytest_distbench.launch.site.dial", log=plan.files.launcher_log)
    try:
        calls = callers.relays()
    except BaseException:
        callers.cancel()
        raise
    hosts = [Host(name=call.hello.host, relay=call, ranks=ranks) for call, ranks in zip(calls, layout, strict=True)]
    return RelayedSite(plan, hosts, meeting_point=(calls[0].hello.address, calls[0].hello.port))


def hear(line: socket.socket, kind: type[_Said], secret: str) -> _Said | None:
    """What somebody says first who has called; None: a stranger, who does not know the secret."""
    line.settimeout(_LEAVE_S)
    heard = b""
    try:
        while not heard.endswith(b"\n") and len(heard) < _MOST_BYTES and (byte := line.recv(1)):
            heard += byte  # and not what follows, which is the relay's
        said = msgspec.json.decode(heard, type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
    line.settimeout(None)
    keep_alive(line)
    return said if secrets.compare_digest(said.secret, secret) else None


def within_s(hosts: int) -> float:
    """How long a process on each of so many hosts may take to start and call."""
    return CALL_S * (1 + hosts / 100)


def addresses() -> list[str]:
    """Where others may reach this host: by the name that they know it by, or an address.

    Its name comes last where it leads this host to itself: a relay that lives here would tell others that address.
    """
    name, found = socket.gethostname(), _interfaces()
    with contextlib.suppress(OSError):
        found = [*found, name] if socket.gethostbyname(name).startswith("127.") else [name, *found]
    return list(dict.fromkeys(filter(None, [os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), *found]))) or ["127.0.0.1"]


def _interfaces() -> list[str]:
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and not name.startswith("lo")
    ]


def cancel(command: subprocess.Popen[bytes]) -> None:
    """End a command and what it leads on this host: with SIGTERM, of which srun makes the end of the step's tasks."""
    if command.poll() is not None:
        return  # its number may be another's by now
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, number)
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline:
            command.poll()
            if not processes.group(command.pid):
                return
            time.sleep(_LOOK_S)
