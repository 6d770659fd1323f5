"""The network between the ranks of a launch: what is made for it, or the name of the one that is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.record import Record
from pytest_distbench.units import convert, parse_quantity

NETWORK_RATE, NETWORK_ROUND_TRIP = "network_rate", "network_round_trip"
"""What a network that was made carries from one host to the next, by TCP alone, where no rank uses it."""

UNLIMITED = "unlimited"
"""In the place of a rate: as much as this machine carries."""

LEAST_RATE, MOST_RATE, MOST_DELAY_S, MOST_LOSS = 10e6, 1e12, 1.0, 0.2
"""Bits per second, seconds one way, and a fraction. Below that rate a message of a few KiB takes longer than any
suite has time for; beyond that loss TCP is no network to train on."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit", re.ASCII)
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_WANTED = (
    "wanted a rate of 10mbit to 1000gbit or 'unlimited', and behind it as needed delay=1ms (one way, at most 1s), "
    "loss=0.1% (at most 20%), overlay and hosts=2, as in '1gbit,delay=1ms,overlay'; or label=NAME of the network that "
    "is there, as in 'label=infiniband'"
)


class Network(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A network between hosts: with a label that of the cluster, else one that is made of namespaces of this host."""

    rate: float = 0.0
    """Bits per second that each host sends and receives at most; 0: what this machine carries."""
    delay_s: float = 0.0
    """One way, between any two hosts."""
    loss: float = 0.0
    """Fraction of packets that are lost on the way."""
    overlay: bool = False
    """VXLAN (RFC 7348) over the network of the hosts, as container networks have it."""
    hosts: int = 0
    """That share the ranks evenly, in their order; 0: each rank is a host of its own."""
    label: str = ""
    """The name of a network that nobody can make here: that of the cluster."""

    @property
    def text(self) -> str:
        """As options and names of cases have it; :func:`parse_network` reads it."""
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
    return make_network(first, keywords, told=show(text))


def make_network(rate: object, keywords: Mapping[str, object], *, told: str) -> Network:
    """A network of its parts, as the marker has them: values are texts, and numbers where they are no quantities.

    The rate is empty with a label. ``told`` is how the whole was written, for an error.
    """
    if (unknown := next((name for name in keywords if name not in _READ), None)) is not None:
        raise ConfigurationError(f"network {told}: there is no {show(unknown)}; {_WANTED}")
    given = {name: value for name, value in keywords.items() if value is not None}
    if "label" in given:
        if rate or len(given) > 1:
            raise ConfigurationError(f"network {told}: a label names what is there, and nothing is made; {_WANTED}")
        return Network(label=_read("label", given["label"], told))
    found = {_FIELDS.get(name, name): _read(name, value, told) for name, value in given.items()}
    return Network(rate=_read("rate", rate, told), **found)


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
"""Set in ranks of hosts that are made: their one interface, and that NCCL takes each for another, which would find
another way between two GPUs of one machine else."""


def rank_variables(hosts: Sequence[int], rank: int, *, on_gpu: bool) -> dict[str, str]:
    """Environment of a rank on its host.

    The ranks meet at the host of rank 0, which holds the store, as no host can reach that of torchrun's agent: under
    the port that was found for it, so that two groups can use one network.
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
    """Folder of the links to the namespaces of a host."""
    return folder / f"host{host}"


def _read(name: str, value: object, told: str) -> Any:
    found = _READ[name](value)
    if found is None:
        raise ConfigurationError(f"network {told}: {name}={show(value)}; {_WANTED}")
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


class Passage(Record, frozen=True, kw_only=True):
    source: int
    target: int
    rate: float
    """Bits per second of what is sent, without headers."""
    round_trip_s: float
    """Of one byte, the median of some."""


class NetworkAnswer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the process that holds the hosts of a network."""

    places: list[str] = []
    """Paths of their namespaces, while that process is there."""
    is_user: bool = False
    """They belong to a user namespace, its own, which who enters them enters first."""
    made_by: str = ""
    """What shapes and delays: the ``kernel``, or a ``relay``."""
    passages: list[Passage] = []
    """Of a probe."""
    trouble: str = ""
    """Why there is no network, or no answer; nothing more comes then."""
