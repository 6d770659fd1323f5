"""What the process does that holds the hosts of a network.

It makes the namespaces, joins them, and says where they are; answers ``probe`` on its stdin; and ends with its stdin,
whereupon the kernel takes everything away. What goes wrong is told on its stdout too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import NoReturn

import msgspec

from pytest_distbench.machine.network.probe import probe
from pytest_distbench.machine.network.relay import open_device, relay
from pytest_distbench.machine.network.wiring import Commands, addressed, cover, under_address, underlay, wire
from pytest_distbench.records.network import Network, NetworkAnswer, host_address

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET (linux/sched.h)."""
_DIES_WITH_PARENT, _SLACK, _DUMPABLE = 1, 29, 4
"""PR_SET_PDEATHSIG, PR_SET_TIMERSLACK and PR_SET_DUMPABLE (linux/prctl.h)."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_PATH = "/usr/sbin:/sbin"


class Unavailable(Exception):
    """Why there can be no network here."""


class _Hosts:
    """The namespaces of the hosts, and that of the switch, which is this process's own."""

    def __init__(self, network: Network, count: int) -> None:
        self._network = network
        self._count = count
        self.is_user = _enter_own_namespace()
        self._switch = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._namespaces = []
        for _ in range(count):
            _unshare(_NEW_NET)
            self._namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        _enter(self._switch)

    @property
    def places(self) -> list[str]:
        """Paths of the namespaces of the hosts, while this process is there."""
        return [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._namespaces]

    def join(self) -> str:
        """Join the hosts; the name of what shapes and delays."""
        network = self._network
        has_netem = _has_netem() if network.delay_s or network.loss else False
        if (network.delay_s or network.loss) and not has_netem:
            self._join_by_relay()
            made_by = "relay"
        else:
            self._run(wire(network, self._count, self.places, has_netem=has_netem))
            made_by = "kernel"
        self._run(cover(network, self._count))
        return made_by

    def _join_by_relay(self) -> None:
        network, devices = self._network, []
        for host in range(self._count):
            with self.within(host):
                try:
                    devices.append(open_device(underlay(network), network))
                except OSError as error:
                    raise Unavailable(
                        f"this kernel has no netem, and delays need /dev/net/tun: {error.strerror}. Next: modprobe "
                        "sch_netem (Ubuntu: linux-modules-extra), or give a container --device /dev/net/tun"
                    ) from error
            self._run([Commands("ip", host, addressed(network, host))])
        parent = os.getpid()
        if os.fork() == 0:
            _LIBC.prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            _LIBC.prctl(_SLACK, 1)
            if os.getppid() != parent:
                os._exit(0)
            _be_relay(network, devices)
        for device in devices:
            os.close(device)

    def answer_probe(self) -> NetworkAnswer:
        """What a probe finds."""
        try:
            return NetworkAnswer(passages=probe(self.within, self._count, self._network))
        except OSError as error:
            raise Unavailable(f"a host cannot reach the next one: {error.strerror or error}") from error

    @contextlib.contextmanager
    def within(self, host: int) -> Iterator[None]:
        """Meanwhile sockets and devices that are made belong to a host."""
        _enter(self._namespaces[host])
        try:
            yield
        finally:
            _enter(self._switch)

    def _run(self, commands: Iterable[Commands]) -> None:
        for each in commands:
            with contextlib.nullcontext() if each.host is None else self.within(each.host):
                tell(each.program, each.lines)


def _be_relay(network: Network, devices: list[int]) -> NoReturn:
    with contextlib.suppress(OSError):  # of the ordinary user
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    address = under_address if network.overlay else host_address
    try:
        relay(network, devices, [address(host) for host in range(len(devices))])
    finally:
        os._exit(1)


def _enter_own_namespace() -> bool:
    """Leave the network of this machine; whether a user namespace was needed for it, where this user is root."""
    if _LIBC.unshare(_NEW_NET) == 0:
        return False
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(_NEW_USER | _NEW_NET) != 0:
        why = os.strerror(ctypes.get_errno())
        raise Unavailable(
            f"the kernel gives this user no network namespace: {why}. Next: run pytest as root, or allow user "
            "namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0); in a container --privileged"
        )
    _LIBC.prctl(_DUMPABLE, 1)  # else the namespaces of this process cannot be opened by its own user
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _unshare(what: int) -> None:
    if _LIBC.unshare(what) != 0:
        raise Unavailable(f"the kernel gives no further network namespace: {os.strerror(ctypes.get_errno())}")


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _NEW_NET) != 0:
        raise Unavailable(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


def _has_netem() -> bool:
    try:
        tell("tc", ["qdisc add dev lo root netem delay 1ms"])
        tell("tc", ["qdisc del dev lo root"])
    except Unavailable:
        return False
    return True


def tell(program: str, lines: list[str]) -> None:
    """Have a program of iproute2 carry out lines, all or an error."""
    text = "".join(f"{line}\n" for line in lines)
    variables = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_PATH}"}
    try:
        ended = subprocess.run([program, "-batch", "-"], input=text, capture_output=True, text=True, env=variables)
    except OSError as error:
        raise Unavailable(f"{program}: {error.strerror}. Next: install iproute2") from error
    if ended.returncode:
        told = next(iter(ended.stderr.strip().splitlines()), f"exit status {ended.returncode}")
        raise Unavailable(f"{program} cannot make it: {told} (of: {'; '.join(lines)[:200]})")


def _say(answer: NetworkAnswer) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def serve(count: int, network: Network) -> int:
    """Make so many hosts, and answer until stdin ends; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's to act on, which ends this process
    try:
        hosts = _Hosts(network, count)
        _say(NetworkAnswer(places=hosts.places, is_user=hosts.is_user, made_by=hosts.join()))
        for _ in sys.stdin:
            _say(hosts.answer_probe())
    except Exception as error:  # noqa: BLE001 whoever wanted it is told
        _say(
            NetworkAnswer(trouble=str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}")
        )
        return 1
    return 0
