"""One measured point, and what its baseline file holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.environment import GpuReport
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.metric import BoundValue, Sample, terms_of
from pytest_distbench.records.record import Record, Tolerance

RANKS = "ranks"  # the kind of launch whose processes a launcher of ranks starts

OVERSUBSCRIBED = "oversubscribed"
"""Key of :attr:`Conditions.around` where a test lets ranks share cores: its timings are shown, not judged."""


CPUS = "cpus"  # key of ``around``: the CPU quota of each rank, in cores

NETWORK = "network"  # key of ``around``: the network that the test chose, as text

NODES = "nodes"  # key of ``around``: how many hosts the ranks live on, and the ranks on each


class Conditions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions of a measurement: numbers of cases that differ in them are never compared."""

    world_size: Annotated[int, msgspec.Meta(ge=1)]
    backend: str
    launcher: str
    """What started the processes, as the row of the launch kind says: ``warm``, ``command``, ``elastic-fast``."""
    kind: str = RANKS  # of launch
    engine: str = ""  # what changed the membership of its jobs, or ""
    fake_rank: int | None = None
    """Rank that the one process stood for, on the backend ``fake``; or None if each rank had a process."""
    around: dict[str, str] = {}  # what happened around its launches, by name


class Case(Record, frozen=True, kw_only=True):
    """One measured point: a test with its parameters, under some conditions."""

    test: str  # path and function, without parameters: ``suites/collectives/test_all_reduce.py::test_all_reduce``
    id: str = ""  # the bracketed part of the node id: ``float32-ws2``
    family: str = ""  # the same without its world size: ``float32``
    run: str = ""  # the name that its test gave this run, or the metric that was derived
    names_size: bool = False  # its run has a world size of its own, which is part of the label
    conditions: Conditions
    device: Literal["cpu", "cuda"]
    params: dict[str, Any] = {}
    place: str = ""
    """End of the file's path that distinguishes tests of one name in several files, or ""."""

    @property
    def world_size(self) -> int:
        """Ranks of its process groups."""
        return self.conditions.world_size

    @property
    def label(self) -> str:
        """Name of the run, for people, with the conditions that distinguish runs of one name: ``one@ws4``."""
        size = f"@ws{self.world_size}" if self.names_size else ""
        rank = f"@rank{self.conditions.fake_rank}" if self.conditions.fake_rank else ""
        return self.run + size + rank + "".join(f"@{by}={what}" for by, what in sorted(self.conditions.around.items()))

    @property
    def name(self) -> str:
        """Name of the case among the cases of its test, for people: ``ws4:one``."""
        return f"{self.id}:{self.label}" if self.label else self.id

    @property
    def key(self) -> str:
        """Key of its baseline, for files and people: ``float32-ws2.gloo.warm``."""
        return key_text(self.name, self.conditions.backend, self.conditions.launcher)

    @property
    def function(self) -> str:
        """Name of the test function, with its class if it has one: ``test_all_reduce``."""
        return self.test.partition("::")[2] or self.test

    @property
    def title(self) -> str:
        """Test, and name of the case in it: ``test_all_reduce[float32-ws2]``."""
        return f"{self.shown_test}[{self.name}]" if self.name else self.shown_test

    @property
    def shown_test(self) -> str:
        """Test function, with its class, and with its file if several files have a test of that name."""
        return f"{self.place}::{self.function}" if self.place else self.function

    @property
    def series(self) -> str:
        """Name shared by cases that differ in world size alone: ``test_all_reduce[float32:warm]``."""
        known = ":".join(filter(None, [self.family, self.run]))
        return f"{self.shown_test}[{known}]" if known else self.shown_test

    @property
    def folder(self) -> str:
        """Test and key as a path: ``suites/test_a.py/test_b/ws2.gloo.warm``."""
        return f"{self.test.replace('::', '/')}/{self.key}"

    @property
    def workload(self) -> str:
        """Short hash of the parameters; a baseline with another hash measured something else."""
        text = json.dumps([self.world_size, self.device, self.params], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def key_text(name: str, backend: str, launcher: str) -> str:
    """Key of a baseline for messages and file names: ``ws4:one.gloo.warm``; it cannot always be taken apart again."""
    return f"{name}.{backend}.{launcher}"


def beginnings(test_id: str) -> tuple[str, str]:
    """The two ways in which keys of a test's cases begin, ``id:`` and ``id.``; keys of another, longer id may, too."""
    return f"{test_id}:", f"{test_id}."


class BaselineName(Record, frozen=True, kw_only=True, order=True):
    """Identity of a stored baseline: platform, test, and key of its case."""

    platform: str
    test: str
    key: str  # as :attr:`Case.key`

    def __str__(self) -> str:
        return f"{self.test}[{self.key}]"


class BaselineEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a baseline file: the numbers of a case, and what was set by hand."""

    workload: str  # hash of what was measured; empty if another tool made the numbers, or there are none
    conditions: Conditions
    test_id: str | None = None  # of the test that measured it; None: not recorded, as for numbers of other tools
    software: dict[str, str]
    metrics: dict[str, list[Sample]]  # by metric key, one sample per launch
    tolerances: dict[str, Tolerance] = {}
    """Fractions by metric key, set by hand in the file, which an update keeps; they override ``tolerance``."""
    params: dict[str, Any] = {}
    foreign_cores: float | None = None
    """Cores that other processes used in the median launch, or None if the body was too short."""
    foreign_wanted: float | None = None
    """Cores that other processes would have used, had there been enough; or None if unknown."""
    crowding: float | None = None
    """Factor by which competition for the cores prolonged the work, or None if unknown."""
    gpu_norm: GpuReport | None = msgspec.field(default=None, name="cards")
    """State of the GPUs, or None on the CPU and where nobody looked."""
    tolerance: Tolerance | None = None
    """Tolerance of all metrics, set by hand in the file, which an update keeps; overrides markers and options."""
    xfail_perf: str = ""  # set by hand in the file: why a regression of this case is expected. An update keeps it.
    bounds: dict[str, BoundValue] = {}
    """Bounds by a metric's key, or by a name for all its points, set by hand in the file. An update keeps them."""
    fingerprints: dict[str, Fingerprint] = {}
    phases: dict[str, float] = {}
    """Seconds in each phase the body named, of the median launch: they explain, and are not judged."""
    launch_s: float | None = None
    """Seconds of the median launch, start and end included; used to estimate how long a run takes."""

    @property
    def holds_numbers(self) -> bool:
        """Whether there are numbers to compare with; a file may hold settings by hand alone."""
        return bool(self.metrics)

    def is_of(self, test_ids: Collection[str], key: str) -> bool:
        """Whether a test that has one of these ids measured it.

        Without a recorded id the key decides, which begins with the id; a colon follows, and an id may hold colons.
        """
        if self.test_id is not None:
            return self.test_id in test_ids
        whole = {key_text(test_id, self.conditions.backend, self.conditions.launcher) for test_id in test_ids}
        return key in whole or key.startswith(tuple(f"{test_id}:" for test_id in test_ids))

    def by_hand(self, key: str) -> tuple[float | None, float | None]:
        """The tolerances set by hand in the file, of a metric and of the case."""
        return self.tolerances.get(key), self.tolerance

    def __post_init__(self) -> None:
        for metric, value in self.bounds.items():
            try:
                terms_of(value)
            except ConfigurationError as error:
                raise ValueError(f"bounds of {metric}: {error}") from None
