"""Processes that one command starts on several hosts and that call back; and the launcher ``cmd``, by such a command.

They connect to this process (``hosts/relay.py``), as the command has no stream for each. Hosts have to be alike: before
the first launch ``python -m pytest_distbench.hosts.calls PORT ADDRESS... --sees=FOLDER [--gpu]`` on each of them calls
as a relay does, and reports the host's hardware and software.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from pytest_distbench.errors import ConfigurationError, LauncherError, show
from pytest_distbench.hosts.relay import BY_TORCHRUN, SECRET_VARIABLE, Caller, connect, host_name, keep_alive, say
from pytest_distbench.hosts.relayed import Host, Keeper, RelayedSite
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import Launcher, LauncherSetup
from pytest_distbench.launch.workplace import tail
from pytest_distbench.machine import gpus, hardware
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import SESSION_VARIABLE
from pytest_distbench.units import and_more

CALL_S = 60.0  # how long processes may take to start and call, and so much more for each hundred of hosts
_MOST_BYTES = 2**18  # of what a process says first
_END_S = 20.0  # how long a command may go on when all have called who end then
_LEAVE_S = 5.0
_LOOK_S = 0.02

Call = tuple[socket.socket, Caller]  # the connection of a process that has called, and what it said of itself


class NotCalled(LauncherError):
    """A process started on another host did not connect in time. ``missing``: names of such hosts, if known."""

    def __init__(self, text: str, missing: Sequence[str]) -> None:
        super().__init__(text)
        self.missing = missing


class Callers:
    """The processes that one command starts, one on each of some hosts, and that connect to this process.

    ``command`` makes the command line from this process's port and addresses (``where``), and from environment
    variables that it may have to pass on. ``names`` are the hosts, if known; ``session`` is a variable's value that
    marks all started processes; ``advice`` ends the error for a process that does not connect.
    """

    def __init__(
        self,
        command: Callable[[Sequence[str], Mapping[str, str]], Sequence[str]],
        *,
        environment: Mapping[str, str],
        count: int,
        names: Sequence[str] = (),
        log: Path,
        session: str,
        advice: str,
    ) -> None:
        self._count = count
        self._names = names
        self._log = log
        self._advice = advice
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("", 0), backlog=count)
        variables = {SESSION_VARIABLE: session, SECRET_VARIABLE: self._secret}
        self.where = [str(self._listener.getsockname()[1]), *addresses()]
        self._words = command(self.where, variables)
        self._process = processes.start_session(self._words, variables={**environment, **variables}, log=log)
        self.pid = self._process.pid

    def take(
        self,
        *,
        names: Sequence[str] | None = None,
        limit_s: float | None = None,
        among: Mapping[str, socket.socket] | None = None,
        until_the_end: bool = False,
    ) -> list[Call]:
        """Wait for a call from each host, and return the calls in the order of the names.

        Args:
            names: names of the hosts whose processes are to connect, by default all.
            limit_s: seconds to wait, by default as long as for processes that are started now.
            among: connections of hosts that must stay open and silent meanwhile.
            until_the_end: whether to wait for the end of the command too; other hosts may connect until then.

        Raises:
            NotCalled: a host has not called in time, or cannot any more.
            LauncherError: a process has called that should not have been started.
        """
        names = self._names if names is None else names
        count = len(names) or self._count
        limit_s = within_s(self._count) if limit_s is None else limit_s
        deadline = time.monotonic() + limit_s
        taken: dict[str, Call] = {}
        with contextlib.ExitStack() as lines, contextlib.ExitStack() as stack:
            ended = os.pidfd_open(self.pid)
            stack.callback(os.close, ended)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(ended, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            for name, line in (among or {}).items():
                selector.register(line, selectors.EVENT_READ, name)
            while until_the_end or len(taken) < count:
                keys = [key for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if lost := next((key.data for key in keys if key.data is not None), None):
                    raise self._missed(f"host {lost} was lost before", names, count, taken)
                if not keys and len(taken) == count:
                    raise LauncherError(
                        f"{self._words[0]} goes on, though what it started on {', '.join(taken)} has ended; it "
                        f"must end with them, at the latest {_END_S:.0f} s after the last has called"
                    )
                if not keys:
                    raise self._missed(f"within {limit_s:.0f} s", names, count, taken)
                if any(key.fileobj is self._listener for key in keys):
                    line = lines.enter_context(self._listener.accept()[0])
                    said = _hear(line, self._secret)
                    if said is None or not self._is_wanted(said.host, names, count, taken):
                        line.close()
                    else:
                        taken[said.host] = line, said
                        if len(taken) == count:
                            deadline = time.monotonic() + _END_S
                elif until_the_end and len(taken) == count:
                    break
                else:
                    code = self._process.wait()
                    raise self._missed(f"{self._words[0]} has ended (exit code {code}) before", names, count, taken)
            lines.pop_all()
        return [taken[name] for name in names or sorted(taken)]

    def poll(self) -> int | None:
        return self._process.poll()

    def expect_no_more(self) -> None:
        self._listener.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all its processes have ended, and take no more calls."""
        self.expect_no_more()
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End the command and its processes on this host by SIGTERM, for which srun ends a step's tasks, or SIGKILL."""
        self.expect_no_more()
        if self._process.poll() is not None:
            return  # its number may be another's by now
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            deadline = time.monotonic() + _LEAVE_S
            while time.monotonic() < deadline:
                self._process.poll()
                if not processes.group(self.pid):
                    self._process.wait()  # it may have ended between these two looks
                    return
                time.sleep(_LOOK_S)

    def _is_wanted(self, host: str, names: Sequence[str], count: int, taken: Mapping[str, object]) -> bool:
        if self._names and host not in self._names:
            raise LauncherError(f"{host} has called, which is not one of {', '.join(self._names)}")
        if names:  # of others, one may come late that was given up
            return host in names and host not in taken
        if host in taken:
            raise LauncherError(
                f"{self._words[0]} has started two processes on {host}; wanted one on each of {count} hosts"
            )
        if len(taken) == count:
            raise LauncherError(
                f"{self._words[0]} has started processes on {', '.join([*taken, host])}; wanted {count}"
            )
        return True

    def _missed(self, when: str, names: Sequence[str], count: int, taken: Mapping[str, object]) -> NotCalled:
        missing = [name for name in names if name not in taken]
        of = f" ({', '.join(taken)})" if taken else ""
        message = f"{len(taken)} of {count} hosts have called{of}"
        if missing:
            message = f"{message}, and not {and_more(missing, shown=4)}"
        message = f"{message} {when}" if when.startswith("within") else f"{when} all hosts called; {message}"
        printed = tail(self._log, lines=5).strip().replace(self._secret, "***")
        shown = show(printed or f"{self._words[0]} said nothing", longest=600)
        return NotCalled(f"{message}: {shown}. {self._advice}", missing)


def fill_hosts(ranks: int, per_host: int) -> list[range]:
    """The ranks of each host, if as few hosts as possible have ``per_host`` ranks each, and the last one the rest."""
    return [range(first, min(first + per_host, ranks)) for first in range(0, ranks, per_host)]


def make_site(plan: LaunchPlan, layout: Sequence[range], called: Iterable[tuple[Call, Keeper]]) -> RelayedSite:
    called = list(called)
    hosts = [
        Host(said.host, line=line, keeper=keeper, ranks=ranks)
        for ((line, said), keeper), ranks in zip(called, layout, strict=True)
    ]
    (_, first), _ = called[0]
    return RelayedSite(plan, hosts, meeting_point=(first.address, first.port))


def take_relays(callers: Callers) -> list[Call]:
    """Return the calls of all relays that were started; if one does not call, end the others."""
    try:
        relays = callers.take()
    except BaseException:
        callers.kill()
        raise
    callers.expect_no_more()
    return relays


def _hear(line: socket.socket, secret: str) -> Caller | None:
    line.settimeout(_LEAVE_S)
    heard = b""
    try:
        while not heard.endswith(b"\n") and len(heard) < _MOST_BYTES and (byte := line.recv(1)):
            heard += byte  # and not what follows, which is the relay's
        said = msgspec.json.decode(heard, type=Caller)
    except (OSError, msgspec.MsgspecError):
        return None
    line.settimeout(None)
    keep_alive(line)
    return said if secrets.compare_digest(said.secret, secret) else None


def within_s(hosts: int) -> float:
    return CALL_S * (1 + hosts / 100)


def addresses() -> list[str]:
    """Addresses and names by which other hosts may reach this one, the likeliest first.

    The host's name comes last if it resolves to 127.x here: a relay on this host would give others that address.
    """
    name = socket.gethostname()
    there = [
        one for interface, those in psutil.net_if_addrs().items() if not interface.startswith("lo") for one in those
    ]
    found = [one.address for one in there if one.family == socket.AF_INET]
    with contextlib.suppress(OSError):
        found = [*found, name] if socket.gethostbyname(name).startswith("127.") else [name, *found]
    return list(dict.fromkeys(filter(None, [os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), *found]))) or ["127.0.0.1"]


GPU, SEES = "--gpu", "--sees="


def describe_hosts(
    whose: str, start: Callable[..., Callers], *, gpu: bool, platform: str, gpu_advice: str
) -> tuple[Environment, bool]:
    """Environment that all hosts report before the first launch, and whether each sees a folder of this host.

    Raises ConfigurationError if hosts differ in platform or software, or lack a wanted GPU. ``start`` starts a process
    on each host, and takes the further arguments of :class:`Callers`; ``whose`` names the hosts in errors.
    """
    with tempfile.TemporaryDirectory(prefix="distbench-hosts-") as folder:
        module, words = "pytest_distbench.hosts.calls", [f"{SEES}{folder}", *[GPU] * gpu]
        try:
            callers = start(module, *words, log=Path(folder, "log"), session=uuid.uuid4().hex)
            try:
                calls = callers.take(until_the_end=True)
            finally:
                callers.kill()
        except LauncherError as error:
            raise ConfigurationError(f"{whose} do not all report their hardware: {error}") from None
    for line, _ in calls:
        line.close()
    found = {said.host: said.environment for _, said in calls if said.environment is not None}
    host, first = next(iter(found.items()))
    _refuse_differences(found, lambda one: one.software, f"{whose} have different software")
    if not platform:
        _refuse_differences(
            found,
            lambda one: one.platform,
            f"{whose} have different hardware: use hosts of one platform, or name all with --distbench-platform NAME",
        )
    if gpu and first.gpu_host is None:
        raise ConfigurationError(f"--gpu: no GPU is visible on {host}: {gpu_advice}")
    return replace(first, platform=platform or first.platform), all(said.sees for _, said in calls)


def _refuse_differences(hosts: Mapping[str, Environment], of: Callable[[Environment], object], message: str) -> None:
    found: dict[str, list[str]] = {}
    for host, environment in hosts.items():
        found.setdefault(show(of(environment)), []).append(host)
    if len(found) > 1:
        shown = "; ".join(f"{', '.join(names[:4])}: {what}" for what, names in found.items())
        raise ConfigurationError(f"{message}: {shown}")


_OPTION = "--distbench-launcher"
_PLACEHOLDER = re.compile(r"\{(\w+)(?:(?<=nodes):([1-9][0-9]{0,8}))?\}")
_PLACEHOLDERS = {
    "nodes": "number of hosts; {nodes:8}: each is filled with 8 ranks, not 1",
    "ranks": "number of ranks",
    "ranks_per_node": "the most ranks of a host",
    "command": "what to run once on each host",
    "torchrun": "the same, if a torchrun on each host is to start the ranks",
}
_ONE_LOOK_UP = {"RES_OPTIONS": "attempts:1"}
"""Variables by which a host name that DNS does not answer for costs a caller one time-out only."""


def _sizes(template: str) -> set[int]:
    return {int(size) for _, size in _PLACEHOLDER.findall(template) if size}


def ranks_per_node(template: str) -> int:
    return max(_sizes(template), default=1)


def check_engine(template: str) -> None:
    """Raise ConfigurationError for a template with unknown or missing placeholders, or without a program."""
    found = {name for name, _ in _PLACEHOLDER.findall(template)}
    wrong = [f"there is no {{{name}}}" for name in sorted(found - _PLACEHOLDERS.keys())]
    wrong += ["{nodes} is missing"] * ("nodes" not in found)
    wrong += ["{command} or {torchrun} is missing"] * found.isdisjoint(("command", "torchrun"))
    wrong += ["{nodes:...} has two numbers"] * (len(_sizes(template)) > 1)
    try:
        program = shlex.split(template)[0]
        wrong += [f"there is no program {program!r} on this host"] * (shutil.which(program) is None)
    except ValueError as error:
        wrong.append(str(error))
    if wrong:
        known = ", ".join(f"{{{name}}} ({what})" for name, what in _PLACEHOLDERS.items())
        raise ConfigurationError(
            f"{_OPTION}: {template!r}: {', '.join(wrong)}; wanted a program of this host with {{nodes}}, and "
            f"{{command}} or {{torchrun}}. Placeholders are {known}; shell syntax goes into a script, or behind sh -c"
        )


def fill(template: str, *, nodes: int, words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The words of the user's command, with its placeholders filled; no shell reads them.

    The command that it starts on each host sets its variables itself, as not every engine passes them on. Its words
    are plain, so that an ``ssh`` may join them and a shell there may split them.
    """
    command = shlex.join(["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *words])
    per_node = ranks_per_node(template)
    values = {
        "nodes": str(nodes),
        "ranks": str(nodes * per_node),
        "ranks_per_node": str(per_node),
        "command": command,
        "torchrun": command,
    }
    return shlex.split(_PLACEHOLDER.sub(lambda found: values[found[1]], template))


def ranks_of_nodes(ranks: int, *, on_gpus: bool, engine: str) -> list[int]:
    del on_gpus
    return [len(node) for node in fill_hosts(ranks, ranks_per_node(engine))]


def describe(*, ranks: int, engine: str, gpu: bool, platform: str) -> tuple[Environment, bool]:
    nodes = len(fill_hosts(ranks, ranks_per_node(engine)))
    return describe_hosts(
        f"the hosts of {_OPTION}",
        functools.partial(start, nodes, engine),
        gpu=gpu,
        platform=platform,
        gpu_advice="let the command start it on hosts with GPUs, or leave --gpu out",
    )


def as_torchrun(relays: Sequence[Call]) -> list[Call]:
    """Sort hosts as torchrun's rendezvous numbers nodes: by their addresses, as texts."""
    return sorted(relays, key=lambda relay: relay[1].address)


class CmdLauncher(Launcher):
    name = "cmd"

    def __init__(self, setup: LauncherSetup) -> None:
        self.session = setup.session
        self.engine = setup.engine

    def open(self, plan: LaunchPlan) -> RelayedSite:
        ranks = fill_hosts(plan.processes, ranks_per_node(self.engine))
        by_torchrun = "{torchrun}" in self.engine
        words = ["pytest_distbench.hosts.relay", *[BY_TORCHRUN] * by_torchrun]
        callers = start(len(ranks), self.engine, *words, log=plan.files.launcher_log, session=self.session)
        relays = take_relays(callers)
        return make_site(plan, ranks, [(each, callers) for each in (as_torchrun(relays) if by_torchrun else relays)])

    def leftovers(self) -> list[psutil.Process]:
        return processes.find_marked(SESSION_VARIABLE, self.session)

    def close(self) -> None:
        processes.kill(self.leftovers())


def start(nodes: int, engine: str, module: str, *words: str, **callers: Any) -> Callers:
    def command(where: Sequence[str], own: Mapping[str, str]) -> list[str]:
        found_here = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        python = [sys.executable, "-m", module, *where, *words]
        return fill(engine, nodes=nodes, words=python, variables={**_ONE_LOOK_UP, **found_here, **own})

    return Callers(
        command,
        environment=os.environ,
        count=nodes,
        advice=f"The command has to start {{command}} once on each of {nodes} hosts, which reach this one at one of "
        f"{', '.join(addresses())} and have Python and pytest-distbench under the paths of this one",
        **callers,
    )


def main() -> None:
    port, *words = sys.argv[1:]
    folder = next(word.removeprefix(SEES) for word in words if word.startswith(SEES))
    found = gpus.read_gpus(os.environ) if GPU in words else gpus.Gpus()
    software = {"python": platform.python_version(), "torch": hardware.installed_version("torch")}
    environment = hardware.describe(platform_name=None, gpus=found, software=software, variables=os.environ)
    caller = Caller(
        secret=os.environ[SECRET_VARIABLE], host=host_name(), environment=environment, sees=os.path.isdir(folder)
    )
    with connect([word for word in words if not word.startswith("--")], int(port)) as line:
        say(line, caller)


if __name__ == "__main__":
    main()
