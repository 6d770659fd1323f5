"""One measured point, and what the store keeps of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.environment import GpuWitness
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.metric import BoundValue, Sample, terms_of
from pytest_distbench.records.record import Record, Tolerance

RANKS = "ranks"  # the kind of launch whose processes a launcher of ranks starts

OVERSUBSCRIBED = "oversubscribed"
"""What a case has around it whose ranks share cores, because its test asked for that: its clocks are only shown."""


CPUS = "cpus"  # what a case has around it whose ranks have a CPU quota: the cores of each

NETWORK = "network"  # what a case has around it whose ranks have a network that was chosen: its text

NODES = "nodes"  # what a case has around it whose ranks live on several hosts: how many hosts, and the ranks on each


class Conditions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a case was measured under: numbers of cases that differ in it are never compared."""

    world_size: Annotated[int, msgspec.Meta(ge=1)]
    backend: str
    launcher: str
    """What started its processes, as the row of its kind of launch says: ``warm``, ``command``, ``elastic-fast``."""
    kind: str = RANKS  # of launch
    engine: str = ""  # what changed the membership of its jobs; empty: it has none
    fake_rank: int | None = None
    """The rank that its one process stood for, on the backend ``fake``; None: each rank had one."""
    around: dict[str, str] = {}  # what happened around its launches, by name


class Case(Record, frozen=True, kw_only=True):
    """One measured point: a test with its parameters, under some conditions."""

    test: str  # path and function, without parameters: ``suites/collectives/test_all_reduce.py::test_all_reduce``
    id: str = ""  # the bracketed part of the node id: ``float32-ws2``
    family: str = ""  # the same without its world size: ``float32``
    run: str = ""  # which of the runs of its test: the name that the test gave it, or the metric that was derived
    names_size: bool = False  # its run has a world size of its own, which stands beside the name
    conditions: Conditions
    device: Literal["cpu", "cuda"]
    params: dict[str, Any] = {}
    place: str = ""
    """Where tests of several files of a run have its name: so much of the end of its path as tells them apart."""

    @property
    def world_size(self) -> int:
        """Ranks of its process groups."""
        return self.conditions.world_size

    @property
    def label(self) -> str:
        """Its run, for people, with what tells it from runs of that name under other conditions: ``one@ws4``."""
        size = f"@ws{self.world_size}" if self.names_size else ""
        rank = f"@rank{self.conditions.fake_rank}" if self.conditions.fake_rank else ""
        return self.run + size + rank + "".join(f"@{by}={what}" for by, what in sorted(self.conditions.around.items()))

    @property
    def name(self) -> str:
        """What tells it from the other cases of its test, for people: ``ws4:one``."""
        return f"{self.id}:{self.label}" if self.label else self.id

    @property
    def key(self) -> str:
        """The name of its entry in the store, for files and people: ``float32-ws2.gloo.warm``."""
        return key_text(self.name, self.conditions.backend, self.conditions.launcher)

    @property
    def function(self) -> str:
        """Of the test, with its class if it has one: ``test_all_reduce``."""
        return self.test.partition("::")[2] or self.test

    @property
    def title(self) -> str:
        """Its test and its name among the cases of that: ``test_all_reduce[float32-ws2]``."""
        return f"{self.shown_test}[{self.name}]" if self.name else self.shown_test

    @property
    def shown_test(self) -> str:
        """The function, with its class if it has one, and where that is not enough with its file."""
        return f"{self.place}::{self.function}" if self.place else self.function

    @property
    def series(self) -> str:
        """What it shares with cases that differ in their world size alone: ``test_all_reduce[float32:warm]``."""
        known = ":".join(filter(None, [self.family, self.run]))
        return f"{self.shown_test}[{known}]" if known else self.shown_test

    @property
    def folder(self) -> str:
        """Test and key as a path: ``suites/test_a.py/test_b/ws2.gloo.warm``."""
        return f"{self.test.replace('::', '/')}/{self.key}"

    @property
    def workload(self) -> str:
        """Short hash of the parameters: a baseline with another hash measured something else."""
        text = json.dumps([self.world_size, self.device, self.params], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def key_text(name: str, backend: str, launcher: str) -> str:
    """The key of an entry as text. Nothing is read back out of it, except of files that hold nothing else."""
    return f"{name}.{backend}.{launcher}"


def beginnings(test_id: str) -> tuple[str, str]:
    """How the keys of the cases of a test begin; that of another test, whose id goes on, may begin so too."""
    return f"{test_id}:", f"{test_id}."


class EntryName(Record, frozen=True, kw_only=True, order=True):
    """What a stored entry is known by."""

    platform: str
    test: str
    key: str  # as :attr:`Case.key`

    def __str__(self) -> str:
        return f"{self.test}[{self.key}]"


class BaselineEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The stored numbers of a case, and what was set by hand beside them."""

    workload: str  # hash of what was measured; empty where another tool made the numbers, or there are none
    conditions: Conditions
    test_id: str | None = None  # of the test that measured it; None: nobody has noted it, as of numbers of other tools
    software: dict[str, str]
    metrics: dict[str, list[Sample]]  # by key, a sample of each launch
    tolerances: dict[str, Tolerance] = {}
    """Set by hand in the file, by a metric's key, as a fraction; goes before the entry's. An update keeps them."""
    params: dict[str, Any] = {}
    foreign_cores: float | None = None
    """Cores that other processes used in the median launch; None where the body was too short to tell."""
    foreign_wanted: float | None = None
    """Cores that they would have used, had there been enough; None where that is not known."""
    crowding: float | None = None
    """How many times as long its work took because they wanted the same cores; None where that is not known."""
    gpu_norm: GpuWitness | None = msgspec.field(default=None, name="cards")
    """How the GPUs fared; None on the CPU, and where nobody looked."""
    tolerance: Tolerance | None = None
    """Set by hand in the file, for all metrics of this case; goes before markers and options. An update keeps it."""
    xfail_perf: str = ""  # set by hand in the file: why a regression of this case is expected. An update keeps it.
    bounds: dict[str, BoundValue] = {}
    """Set by hand in the file, by a metric's key or its name, which stands for all its points. An update keeps them."""
    fingerprints: dict[str, Fingerprint] = {}
    phases: dict[str, float] = {}
    """Seconds in each phase the body named, of the median launch; they explain, and are not judged."""
    launch_s: float | None = None
    """How long the median launch took, start and end included: it tells how long a run will take."""

    @property
    def holds_numbers(self) -> bool:
        """Whether there is something to compare with: there may be no more than what was set by hand."""
        return bool(self.metrics)

    def is_of(self, test_ids: Collection[str], key: str) -> bool:
        """Whether a test that has one of these ids measured it.

        Where nobody has noted the id, the key begins with it: the name of a run follows a colon, and an id may hold
        colons too.
        """
        if self.test_id is not None:
            return self.test_id in test_ids
        whole = {key_text(test_id, self.conditions.backend, self.conditions.launcher) for test_id in test_ids}
        return key in whole or key.startswith(tuple(f"{test_id}:" for test_id in test_ids))

    def by_hand(self, key: str) -> tuple[float | None, float | None]:
        """The tolerances of a metric and of the entry that were set in the file."""
        return self.tolerances.get(key), self.tolerance

    def __post_init__(self) -> None:
        for metric, value in self.bounds.items():
            try:
                terms_of(value)
            except ConfigurationError as error:
                raise ValueError(f"bounds of {metric}: {error}") from None
