"""A network between hosts that are namespaces of this one, as pytest's process sees it, and what it carries.

That is measured by TCP alone: no torch, no gloo, so that it tells the network from what runs on it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.hosts.network import (
    NETWORK_RATE,
    NETWORK_ROUND_TRIP,
    Network,
    NetworkAnswer,
    Passage,
    host_address,
    host_place,
    parse_network,
    rank_hosts,
    rank_variables,
)
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.records.case import NETWORK
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import Around, AroundSetup, Describe
from pytest_distbench.units import format_seconds

_ROUND_TRIPS = 20
_FEWEST = 5
_ROUND_TRIPS_S = 0.1
_SENDS_S = 0.15
_STARTS_S = 0.05
_IN_ROUND_TRIPS = 12
"""TCP doubles what it has under way in each: so it has filled what a gigabit carries in 100 ms."""
_PIECE = 1 << 20
_GIVES_UP_S = 15.0

Enter = Callable[[int], AbstractContextManager[None]]
"""Makes sockets those of a host."""


def probe(enter: Enter, hosts: int, network: Network) -> list[Passage]:
    """Send from each host to the next, one pair after the other; of two hosts both ways, and of one nowhere."""
    if hosts == 1:
        return []
    return [_pass(enter, host, (host + 1) % hosts, network) for host in range(hosts)]


def _pass(enter: Enter, source: int, target: int, network: Network) -> Passage:
    with enter(target):
        listener = socket.create_server((host_address(target), 0))
    with listener:
        listener.settimeout(_GIVES_UP_S)
        with enter(source):
            sender = socket.create_connection(listener.getsockname(), timeout=_GIVES_UP_S)
        receiver, _ = listener.accept()
    with sender, receiver:
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(_GIVES_UP_S)
        round_trip_s = _ping(sender, receiver)
        starts_s = _STARTS_S + _IN_ROUND_TRIPS * 2 * network.delay_s
        return Passage(
            source=source, target=target, round_trip_s=round_trip_s, rate=_pour(sender, receiver, starts_s=starts_s)
        )


def _ping(sender: socket.socket, receiver: socket.socket) -> float:
    """Seconds of a byte there and back, the median of some."""
    found: list[float] = []
    began = time.monotonic()
    while len(found) < _ROUND_TRIPS and (len(found) < _FEWEST or time.monotonic() < began + _ROUND_TRIPS_S):
        start = time.monotonic()
        sender.sendall(b".")
        receiver.recv(1)
        receiver.sendall(b".")
        sender.recv(1)
        found.append(time.monotonic() - start)
    return statistics.median(found)


def _pour(sender: socket.socket, receiver: socket.socket, *, starts_s: float) -> float:
    """Bits per second that arrive, once the sender has found its rate."""
    until = time.monotonic() + starts_s + _SENDS_S
    piece = bytes(_PIECE)

    def send() -> None:
        with contextlib.suppress(OSError):  # the receiver has seen enough
            while time.monotonic() < until:
                sender.send(piece)
            sender.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    room = bytearray(_PIECE)
    counted, since, last = 0, 0.0, 0.0
    while num_bytes := receiver.recv_into(room):
        last = time.monotonic()
        if since:
            counted += num_bytes
        elif last > until - _SENDS_S:
            since = last
        if last > until:
            break
    with contextlib.suppress(OSError):
        receiver.shutdown(socket.SHUT_RDWR)
    receiver.close()
    thread.join()
    return 8 * counted / (last - since) if last > since > 0 else 0.0


_ANSWERS_S = 60.0
_ENDS_S = 5.0


class Lab:
    """The hosts of a network, while a process of their own holds them; they go with it.

    Ranks find links to the namespaces in a folder, see :func:`host_place`, which is made, and removed.
    """

    def __init__(self, network: Network, hosts: int, folder: Path) -> None:
        self.network = network
        self._folder = folder
        package = Path(__file__).parents[2]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest_distbench.hosts.network_hosts", str(hosts), network.text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            start_new_session=True,  # Ctrl-C is not its to act on
        )
        try:
            answer = self._answer()
            self.made_by = answer.made_by
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for host, place in enumerate(answer.places):
                host_place(folder, host).mkdir()
                (host_place(folder, host) / "net").symlink_to(place)
                if answer.is_user:
                    (host_place(folder, host) / "user").symlink_to(f"/proc/{self._process.pid}/ns/user")
        except BaseException:
            self.close()
            raise

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    def probe(self) -> Sequence[Passage]:
        """What it carries, from each host to the next, by TCP alone."""
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # it has ended, and said why
                self._process.stdin.write(b"probe\n")
                self._process.stdin.flush()
            return self._answer().passages
        except BaseException:
            self.close()  # an answer that comes late would be taken for that of the next probe
            raise

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self) -> NetworkAnswer:
        assert self._process.stdout is not None
        descriptor, text, until = self._process.stdout.fileno(), b"", time.monotonic() + _ANSWERS_S
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise AroundUnavailable(f"network {self.network.text}: no answer of its hosts for {_ANSWERS_S:g} s")
            piece = os.read(descriptor, 65536)
            if not piece:
                code = self._process.wait()
                raise AroundUnavailable(
                    f"network {self.network.text}: the process of its hosts has ended (exit status {code}); did "
                    "somebody end it? The next launch makes them again"
                )
            text += piece
        answer = msgspec.json.decode(text, type=NetworkAnswer)
        if answer.trouble:
            raise AroundUnavailable(f"network {self.network.text}: {answer.trouble}")
        return answer


CLOSE = 0.1
"""By this fraction a probe may miss the rate that was wanted: a probe is short, and this machine may be busy."""
_LATE_S = 0.001
"""And by this, besides a quarter, the round trip: a relay and a busy machine keep packets a while."""
_LATE_SHARE = 0.25
_TRIES = 4
_PAYLOAD = {False: 1448 / 1514, True: 1398 / 1514}
"""Of what an Ethernet carries with packets of 1500 bytes the share that is no header of Ethernet, IP and TCP; with an
overlay, of those of VXLAN besides."""


class NetworkAround(Around):
    """The networks of a run: each is made for its first launch, and stays for the others."""

    def __init__(self) -> None:
        self._labs: dict[Path, Lab] = {}

    def ready(self, plan: LaunchPlan, hosting: Hosting, folder: Path) -> LaunchPlan:
        """Say which host each rank is to be of, and which addresses and interfaces it finds there."""
        network = parse_network(plan.chosen[NETWORK]) if plan.chosen.get(NETWORK) else None
        if network is None or network.label or hosting.hosts != "one":
            return plan
        place = folder / "networks" / f"{network.text}-of-{plan.world_size}"
        hosts = rank_hosts(network, plan.world_size)
        return replace(
            plan,
            namespaces=[str(host_place(place, host)) for host in hosts],
            rank_variables=[rank_variables(hosts, rank, on_gpu=plan.device == "cuda") for rank in range(len(hosts))],
        )

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Describe]:
        """Have the network there that the plan's ranks enter. The sides of a pair have it in common: they take turns.

        :class:`AroundUnavailable`: there can be none here, or it does not carry what was wanted.
        """
        del hosting
        if not plan.namespaces:
            yield lambda record: record
            return
        network = parse_network(plan.chosen[NETWORK])
        hosts = rank_hosts(network, plan.world_size)
        lab, before = self._lab(network, hosts[-1] + 1, Path(plan.namespaces[0]).parent)
        names = [f"host{host}" for host in hosts] if hosts[-1] else []
        after: list[Passage] = []
        remarks: list[str] = []

        def describe(record: LaunchRecord) -> LaunchRecord:
            record = replace(record, remarks=[*record.remarks, *remarks], hosts=names or record.hosts)
            if record.outcome != "passed":
                return record
            found = _carried(before, after or before, made_by=lab.made_by)
            return replace(record, measurements=[*record.measurements, *found])

        yield describe
        try:
            after.extend(lab.probe())
        except AroundUnavailable as error:  # what became of the launch counts all the same
            remarks.append(f"the network after it: {error}")
        remarks.extend(f"the network after it: {missed}" for missed in misses(network, after))

    def close(self) -> None:
        labs, self._labs = self._labs, {}
        for lab in labs.values():
            lab.close()

    def _lab(self, network: Network, hosts: int, folder: Path) -> tuple[Lab, Sequence[Passage]]:
        """A network that carries what is wanted, and what it carries: that of the launch before, or a new one."""
        known = self._labs.pop(folder, None)
        if known is not None and known.is_there and folder.exists():
            with contextlib.suppress(AroundUnavailable):  # something has become of it: another one is as wanted
                before = _probe_as_wanted(known)
                self._labs[folder] = known
                return known, before
        if known is not None:
            known.close()
        self._labs[folder] = made = Lab(network, hosts, folder)
        return made, _probe_as_wanted(made)


def _probe_as_wanted(lab: Lab) -> Sequence[Passage]:
    """What it carries, which is what was wanted in one of some tries."""
    for _ in range(_TRIES):
        found = lab.probe()
        if not (missed := misses(lab.network, found)):
            return found
    raise AroundUnavailable(
        f"network {lab.network.text}: {missed[0]}, in the best of {_TRIES} probes. This machine cannot simulate it, "
        f"or other work keeps it busy: choose a lower rate or a longer delay"
    )


def misses(network: Network, found: Sequence[Passage]) -> list[str]:
    """Where a network is not what was wanted, in words; where packets are lost TCP has no rate or time of its own."""
    told = []
    wanted = 0.0 if network.loss else network.rate * _PAYLOAD[network.overlay]
    most_s = math.inf if network.loss else 2 * network.delay_s * (1 + _LATE_SHARE) + _LATE_S
    for passage in found:
        way = f"host {passage.source} to host {passage.target}"
        if wanted and abs(passage.rate / wanted - 1) > CLOSE:
            told.append(f"{way} reaches {_megabits(passage.rate)} Mbit/s by TCP; wanted {_megabits(wanted)}")
        if not 2 * network.delay_s <= passage.round_trip_s <= most_s:
            trip, least = format_seconds(passage.round_trip_s), format_seconds(2 * network.delay_s)
            told.append(f"{way} and back takes {trip}; wanted {least} to {format_seconds(most_s)}")
    return told


def _carried(before: Sequence[Passage], after: Sequence[Passage], *, made_by: str) -> Iterator[Sample]:
    """What the probes of a network found before and after a launch: of each way the worse of two, as information."""
    for first, second in zip(before, after, strict=True):
        worse = {
            (NETWORK_RATE, "B/s"): min(first.rate, second.rate) / 8,
            (NETWORK_ROUND_TRIP, "s"): max(first.round_trip_s, second.round_trip_s),
        }
        for (name, unit), value in worse.items():
            yield Sample(
                name=name,
                unit=unit,
                better="info",
                value=value,
                ranks=1,
                reduce="rank0",
                at={"from_host": first.source, "to_host": first.target},
                facts={"made_by": made_by},
            )


def _megabits(rate: float) -> str:
    return f"{rate / 1e6:.0f}" if rate >= 1e9 else f"{rate / 1e6:.4g}"


def make_around(setup: AroundSetup) -> NetworkAround:
    del setup
    return NetworkAround()
