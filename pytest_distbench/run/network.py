"""Networks that are made around launches, and looked at before and after each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.machine.network.lab import Lab
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import NETWORK_RATE, NETWORK_ROUND_TRIP, Measurement, Scalar
from pytest_distbench.records.network import NETWORK, Network, Passage, rank_hosts
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_seconds

CLOSE = 0.1
"""By this fraction a probe may miss the rate that was wanted: a probe is short, and this machine may be busy."""
_LATE_S = 0.001
"""And by this, besides a quarter, the round trip: a relay and a busy machine keep packets a while."""
_LATE_SHARE = 0.25
_TRIES = 4
_PAYLOAD = {False: 1448 / 1514, True: 1398 / 1514}
"""Of what an Ethernet carries with packets of 1500 bytes the share that is no header of Ethernet, IP and TCP; with an
overlay, of those of VXLAN besides."""


@dataclass(frozen=True, slots=True)
class Carried:
    """One launch, or one pair of launches: what the network carried before it, and after."""

    before: Sequence[Passage] = ()
    after: list[Passage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    hosts: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """With what the probes found: of each way the worse of two, as information."""
        record = replace(record, remarks=[*record.remarks, *self.remarks], hosts=[*self.hosts] or record.hosts)
        if record.outcome != "passed":
            return record
        found = []
        for first, second in zip(self.before, self.after or self.before, strict=True):
            at: dict[str, Scalar] = {"from_host": first.source, "to_host": first.target}
            rate, trip = min(first.rate, second.rate), max(first.round_trip_s, second.round_trip_s)
            found += [self._probed(NETWORK_RATE, "B/s", rate / 8, at), self._probed(NETWORK_ROUND_TRIP, "s", trip, at)]
        return replace(record, measurements=[*record.measurements, *found])

    def _probed(self, name: str, unit: str, value: float, at: dict[str, Scalar]) -> Measurement:
        return Measurement(
            name=name, unit=unit, better="info", value=value, ranks=1, reduce="rank0", at=at, facts=dict(self.facts)
        )


class NetworkAround:
    """The networks of a run: each is made for its first launch, and stays for the others."""

    def __init__(self) -> None:
        self._labs: dict[Path, Lab] = {}

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Carried]:
        """Have the network there that the plan's ranks enter. The sides of a pair have it in common: they take turns.

        Raises:
            AroundUnavailable: there can be none here, or it does not carry what was wanted.
        """
        del hosting
        if plan.network is None or not plan.network_place:
            yield Carried()
            return
        hosts = rank_hosts(plan.network, plan.world_size)
        lab, before = self._ready(plan.network, hosts[-1] + 1, Path(plan.network_place))
        names = [f"host{host}" for host in hosts] if hosts[-1] else []
        carried = Carried(before=before, facts={"made_by": lab.made_by}, hosts=names)
        yield carried
        try:
            carried.after.extend(lab.probe())
        except AroundUnavailable as error:  # what became of the launch counts all the same
            carried.remarks.append(f"the network after it: {error}")
        carried.remarks.extend(f"the network after it: {missed}" for missed in misses(plan.network, carried.after))

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The network that was chosen."""
        return {} if request.network is None else {NETWORK: request.network.text}

    def close(self) -> None:
        """Take the networks away."""
        labs, self._labs = self._labs, {}
        for lab in labs.values():
            lab.close()

    def _ready(self, network: Network, hosts: int, folder: Path) -> tuple[Lab, Sequence[Passage]]:
        """A network that carries what is wanted, and what it carries: that of the launch before, or a new one."""
        known = self._labs.pop(folder, None)
        if known is not None and known.is_there and folder.exists():
            with contextlib.suppress(AroundUnavailable):  # something has become of it: another one is as wanted
                before = _expect(known)
                self._labs[folder] = known
                return known, before
        if known is not None:
            known.close()
        self._labs[folder] = made = Lab(network, hosts, folder)
        return made, _expect(made)


def _expect(lab: Lab) -> Sequence[Passage]:
    """What it carries, which is what was wanted in one of some tries."""
    for _ in range(_TRIES):
        found = lab.probe()
        if not (missed := misses(lab.network, found)):
            return found
    raise AroundUnavailable(
        f"network {lab.network.text}: {missed[0]}, in the best of {_TRIES} probes. This machine does not carry it, or "
        "other work keeps it busy: choose a lower rate, or a longer delay"
    )


def misses(network: Network, found: Sequence[Passage]) -> list[str]:
    """Where a network is not what was wanted, in words; where packets are lost TCP has no rate or time of its own."""
    told = []
    wanted = 0.0 if network.loss else network.rate * _PAYLOAD[network.overlay]
    most_s = math.inf if network.loss else 2 * network.delay_s * (1 + _LATE_SHARE) + _LATE_S
    for passage in found:
        way = f"host {passage.source} to host {passage.target}"
        if wanted and abs(passage.rate / wanted - 1) > CLOSE:
            told.append(f"{way} carries {_megabits(passage.rate)} Mbit/s by TCP, wanted {_megabits(wanted)}")
        if not 2 * network.delay_s <= passage.round_trip_s <= most_s:
            trip, least = format_seconds(passage.round_trip_s), format_seconds(2 * network.delay_s)
            told.append(f"{way} and back takes {trip}, wanted {least} to {format_seconds(most_s)}")
    return told


def _megabits(rate: float) -> str:
    return f"{rate / 1e6:.0f}" if rate >= 1e9 else f"{rate / 1e6:.4g}"


def network_place(request: LaunchRequest, hosting: Hosting, directory: Path) -> str:
    """Folder of the links to the hosts of a launch, below a folder of the run; empty: no network is made for it."""
    network = request.network
    if network is None or network.label or hosting.hosts != "one":
        return ""
    return str(directory / "networks" / f"{network.text}-of-{request.world_size}")
