"""The network between the ranks of a launch: a named existing one, or hosts that are namespaces of this one.

This is the side of pytest's process; ``hosts/network_hosts.py`` is the process that holds the namespaces.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.errors import AroundUnavailable, ConfigurationError, show
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.records.case import NETWORK
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import Record, replace
from pytest_distbench.run.kinds import Around, AroundSetup, Describe
from pytest_distbench.units import convert, format_seconds, parse_quantity

NETWORK_RATE, NETWORK_ROUND_TRIP = "network_rate", "network_round_trip"
"""Metrics of an emulated network: bytes/s and seconds of a round trip between two hosts, by TCP, without ranks."""

UNLIMITED = "unlimited"  # in the place of a rate: as much as this machine carries

LEAST_RATE, MOST_RATE, MOST_DELAY_S, MOST_LOSS = 10e6, 1e12, 1.0, 0.2
"""Limits of an emulated network: rates in bit/s, delay in seconds one way, and lost packets as a fraction. Below them,
messages of a few KiB take too long for any suite; beyond, TCP is no network to train on."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit", re.ASCII)
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_WANTED = (
    "wanted a rate of 10mbit to 1000gbit or 'unlimited', and behind it as needed delay=1ms (one way, at most 1s), "
    "loss=0.1% (at most 20%), overlay and hosts=2, as in '1gbit,delay=1ms,overlay'; or label=NAME of the network that "
    "is there, as in 'label=infiniband'"
)


class Network(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A network between hosts: the cluster's if it has a label, else one emulated by namespaces of this host."""

    rate: float = 0.0  # bits per second that each host sends and receives at most; 0: what this machine carries
    delay_s: float = 0.0  # one way, between any two hosts
    loss: float = 0.0  # fraction of packets that are lost on the way
    overlay: bool = False  # VXLAN (RFC 7348) over the network of the hosts, as container networks have it
    hosts: int = 0  # that share the ranks evenly, in their order; 0: each rank is a host of its own
    label: str = ""  # the name of a network that nobody can make here: that of the cluster

    @property
    def text(self) -> str:
        """The network as options and names of cases have it; :func:`parse_network` reads it."""
        if self.label:
            return f"label={self.label}"
        factor, unit = (1e9, "gbit") if self.rate >= 1e9 else (1e6, "mbit")
        parts = [f"{self.rate / factor:.12g}{unit}" if self.rate else UNLIMITED]
        if self.delay_s:
            parts.append(f"delay={self.delay_s * 1e3:.12g}ms")
        if self.loss:
            parts.append(f"loss={self.loss * 100:.12g}%")
        if self.overlay:
            parts.append("overlay")
        if self.hosts:
            parts.append(f"hosts={self.hosts}")
        return ",".join(parts)


def parse_network(text: str) -> Network:
    """Read a network: ``"1gbit"``, ``"unlimited,overlay"``, ``"100mbit,delay=5ms,hosts=2"``, ``"label=roce"``."""
    first, *others = (part.strip() for part in text.split(","))
    keywords: dict[str, object] = {}
    for part in others:
        name, equals, value = part.partition("=")
        if name in keywords:
            raise ConfigurationError(f"network {show(text)}: {name} stands there twice")
        keywords[name] = value if equals else True
    if first.startswith("label="):
        keywords, first = {"label": first.partition("=")[2], **keywords}, ""
    return make_network(first, keywords, written=show(text))


def make_network(rate: object, keywords: Mapping[str, object], *, written: str) -> Network:
    """Make a network from the marker's arguments: ``rate``, "" for a labelled network, and the other properties.

    ``written`` is the marker or option as the user wrote it, for errors.
    """
    if (unknown := next((name for name in keywords if name not in _READ), None)) is not None:
        raise ConfigurationError(f"network {written}: there is no {show(unknown)}; {_WANTED}")
    given = {name: value for name, value in keywords.items() if value is not None}
    if "label" in given:
        if rate or len(given) > 1:
            raise ConfigurationError(f"network {written}: a label names what is there, and nothing is made; {_WANTED}")
        return Network(label=_read("label", given["label"], written))
    found = {_FIELDS.get(name, name): _read(name, value, written) for name, value in given.items()}
    return Network(rate=_read("rate", rate, written), **found)


def rank_hosts(network: Network, world_size: int) -> list[int]:
    hosts = min(network.hosts or world_size, world_size)
    if world_size % hosts:
        raise ConfigurationError(
            f"network {show(network.text)}: {world_size} ranks cannot be shared evenly by {hosts} hosts"
        )
    return [rank * hosts // world_size for rank in range(world_size)]


def host_address(host: int) -> str:
    return f"10.78.{(host + 10) // 256}.{(host + 10) % 256}"


VARIABLES = {
    "GLOO_SOCKET_IFNAME": "eth0",
    "NCCL_SOCKET_IFNAME": "eth0",
    "TP_SOCKET_IFNAME": "eth0",
    "NCCL_IB_DISABLE": "1",
    "NCCL_HOSTID": "distbench-host{host}",
}
"""Environment of ranks on emulated hosts: the name of their interface, and settings by which NCCL takes the network and
not the link between two GPUs of one machine."""


def rank_variables(hosts: Sequence[int], rank: int, *, on_gpu: bool) -> dict[str, str]:
    """Environment of a rank on its host.

    Ranks meet at a store on rank 0's host, as no host reaches torchrun's agent; it has that agent's port, so that two
    groups can use one network.
    """
    found = {
        "MASTER_ADDR": host_address(hosts[0]),
        "TORCHELASTIC_USE_AGENT_STORE": str(False),
        **{name: value.format(host=hosts[rank]) for name, value in VARIABLES.items()},
    }
    if on_gpu:  # it is chosen by the local rank, and all are on this machine
        return found
    return found | {
        "LOCAL_RANK": str(rank - hosts.index(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
        "GROUP_RANK": str(hosts[rank]),
        "GROUP_WORLD_SIZE": str(hosts[-1] + 1),
    }


def host_place(folder: Path, host: int) -> Path:
    return folder / f"host{host}"


def _read(name: str, value: object, written: str) -> Any:
    found = _READ[name](value)
    if found is None:
        raise ConfigurationError(f"network {written}: {name}={show(value)}; {_WANTED}")
    return found


def _read_rate(value: object) -> float | None:
    if value == UNLIMITED:
        return 0.0
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    rate = float(match[1]) * _FACTORS[match[2]] if match else 0.0
    return rate if LEAST_RATE <= rate <= MOST_RATE else None


def _read_quantity(value: object, unit: str, most: float) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        amount, given = parse_quantity(value)
        found = convert(amount, given or "?", unit)  # a number alone could be anything
    except ConfigurationError:
        return None
    return found if 0 <= found <= most else None


def _read_hosts(value: object) -> int | None:
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 6 else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 1 else None


_READ: Mapping[str, Callable[[Any], Any]] = {
    "rate": _read_rate,
    "delay": lambda value: _read_quantity(value, "s", MOST_DELAY_S),
    "loss": lambda value: _read_quantity(value, "", MOST_LOSS),
    "overlay": lambda value: value if isinstance(value, bool) else None,
    "hosts": _read_hosts,
    "label": lambda value: value if isinstance(value, str) and _LABEL.fullmatch(value) else None,
}
_FIELDS = {"delay": "delay_s"}


Passage = tuple[int, int, float, float]
"""A measured way between two hosts: (from host, to host, bit/s of payload by TCP, median seconds of a round trip)."""


class NetworkAnswer(Record, frozen=True, kw_only=True, omit_defaults=True):
    places: list[str] = []  # paths of their namespaces, while that process is there
    is_user: bool = False  # they belong to a user namespace, its own, which who enters them enters first
    made_by: str = ""  # what shapes and delays: the ``kernel``, or a ``relay``
    passages: list[Passage] = []  # of a probe
    trouble: str = ""  # why there is no network, or no answer; nothing more comes then


_ANSWERS_S = 60.0
_ENDS_S = 5.0


class Lab:
    """The emulated hosts of a network: namespaces that exist as long as a process of this object runs.

    Ranks find the namespaces by links in ``folder``, see :func:`host_place`; closing the object removes it.
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


CLOSE = 0.1  # a short probe on a busy machine may miss the wanted rate by this fraction
_LATE_S = 0.001  # and by this, besides a quarter, the round trip: a relay and a busy machine keep packets a while
_LATE_SHARE = 0.25
_TRIES = 4
_PAYLOAD = {False: 1448 / 1514, True: 1398 / 1514}
"""Whether VXLAN adds its headers -> payload of a full Ethernet packet, as a share of its bytes on the wire."""


class NetworkAround(Around):
    """The networks of a run, each made for its first launch and kept."""

    def __init__(self, setup: AroundSetup | None = None) -> None:
        del setup
        self._labs: dict[Path, Lab] = {}

    def ready(self, plan: LaunchPlan, hosting: Hosting, folder: Path) -> LaunchPlan:
        """Set each rank's host, and the addresses and interfaces that it finds there."""
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
        """Hold the network that the plan's ranks enter. Interleaved groups share it.

        Raises :class:`AroundUnavailable` if there can be none here, or it does not carry what was wanted.
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
            found = []  # of each way the worse of two probes, before and after, as information
            for (source, target, rate, trip_s), (_, _, later_rate, later_trip_s) in zip(
                before, after or before, strict=True
            ):
                way = Sample(
                    name=NETWORK_RATE,
                    unit="B/s",
                    better="info",
                    value=min(rate, later_rate) / 8,
                    ranks=1,
                    reduce="rank0",
                    at={"from_host": source, "to_host": target},
                    facts={"made_by": lab.made_by},
                )
                found += [way, replace(way, name=NETWORK_ROUND_TRIP, unit="s", value=max(trip_s, later_trip_s))]
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
    for _ in range(_TRIES):
        found = lab.probe()
        if not (missed := misses(lab.network, found)):
            return found
    raise AroundUnavailable(
        f"network {lab.network.text}: {missed[0]}, in the best of {_TRIES} probes. This machine cannot simulate it, "
        f"or other work keeps it busy: choose a lower rate or a longer delay"
    )


def misses(network: Network, found: Sequence[Passage]) -> list[str]:
    """Texts on measured rates and round trips that a network should not have; with loss, only on round trips below."""
    missed = []
    wanted = 0.0 if network.loss else network.rate * _PAYLOAD[network.overlay]
    most_s = math.inf if network.loss else 2 * network.delay_s * (1 + _LATE_SHARE) + _LATE_S
    for source, target, rate, round_trip_s in found:
        way = f"host {source} to host {target}"
        if wanted and abs(rate / wanted - 1) > CLOSE:
            missed.append(f"{way} reaches {_megabits(rate)} Mbit/s by TCP; wanted {_megabits(wanted)}")
        if not 2 * network.delay_s <= round_trip_s <= most_s:
            trip, least = format_seconds(round_trip_s), format_seconds(2 * network.delay_s)
            missed.append(f"{way} and back takes {trip}; wanted {least} to {format_seconds(most_s)}")
    return missed


def _megabits(rate: float) -> str:
    return f"{rate / 1e6:.0f}" if rate >= 1e9 else f"{rate / 1e6:.4g}"
