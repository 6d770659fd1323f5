"""What calls of the fixtures take by keyword besides their own: what a launch is given, and how it is judged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from pytest_distbench.jobs.engines.table import DEFAULT_ENGINE
from pytest_distbench.records.metric import Reader


class Given(TypedDict, total=False):
    """What a launch is given.

    Attributes:
        module: instead of a body: a module that is run by its name, as ``torchrun -m`` does.
        params: JSON-able; handed to a function as ``rank.params``, and as its arguments of these names.
        args: command line of a script.
        cwd: where the ranks run, relative to the test's file. Default for a script: a folder of each launch's own in
            which all that lies beside the script is linked.
        env: added to the ranks' environment.
        read: metrics by name, read of the output and the files of each launch: :mod:`pytest_distbench.read`.
    """

    module: str
    params: Mapping[str, Any] | None
    args: Sequence[str | os.PathLike[str]]
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    read: Mapping[str, Reader] | None


class Sized(TypedDict, total=False):
    """How large a launch is.

    Attributes:
        world_size: ranks of this run's process groups, at most those the run was given; part of the case's name.
            Default: the test's.
        network: between the ranks, as the marker ``network`` has it: ``"1gbit,delay=1ms,overlay"``. Part of the case's
            name. Default: that of the marker, else of ``--distbench-network``.
    """

    world_size: int | None
    network: str | None


class Limited(TypedDict, total=False):
    """How long a launch takes.

    Attributes:
        timeout: seconds one launch may take.
    """

    timeout: float | None


class CheckKeywords(Given, Sized, Limited, total=False):
    """A launch of ranks.

    Attributes:
        makes_group: False: it is no error that a script makes no process group of torch's, and a function is given
            none: it makes its own, of the variables that torchrun gives a rank.
        seeds: the body runs once for each, in the same group, with ``rank.seed`` set.
        oversubscribed: ``world_size`` may be more than the ranks of the run, on a CPU. Beyond the cores of this host
            clocks are shown, and not judged; the case says so in its name.
        cpus: CPU quota of each rank, in cores, at least 0.01: its process, and all that this starts, compute no more
            than that, as under docker's ``--cpus`` or a CPU limit of Kubernetes. Part of the case's name.
    """

    makes_group: bool
    seeds: Sequence[int]
    oversubscribed: bool
    cpus: float | None


class Repeated(Limited, total=False):
    """Launches of one case.

    Attributes:
        launches: launches judged first.
        name: tells several runs of one test apart.
    """

    launches: int | None
    name: str


class Judged(Repeated, total=False):
    """How they are judged.

    Attributes:
        tolerance: accepted change towards worse, as a fraction, or one per metric name.
    """

    tolerance: float | Mapping[str, float] | None


class MeasureKeywords(CheckKeywords, Repeated, total=False):
    """Of ``distbench.measure``."""


class RunKeywords(CheckKeywords, Judged, total=False):
    """Of ``distbench.run``."""


class ShapeKeywords(Sized, Judged, total=False):
    """Of calls that say themselves what their ranks do."""


class PoolKeywords(Judged, total=False):
    """Of jobs whose membership changes.

    Attributes:
        engine: what changes the membership, a row of ``jobs/engines/table.py``: ``stock``, the command line tool
            torchrun; ``fast``, the same agents from a process that has torch loaded.
        timers: of the engine, by name: ``last_call_s``, ``keep_alive_s``, ``keep_alive_attempts``, ``collective_s``,
            ``settle_s``; in whole seconds for ``stock``, which has ``max_restarts`` besides. Default: as short as its
            public settings allow.
        oversubscribed: there may be more nodes or slots than ranks of the run. What they learn counts; clocks of nodes
            are shown, and not judged. It is said in the record.
    """

    engine: str
    timers: Mapping[str, float] | None
    oversubscribed: bool


class ElasticKeywords(Given, PoolKeywords, total=False):
    """Of ``elastic``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a call was given of all these; ``argument`` is how it names the body.

    ``called_by`` is of what is no function, see :class:`~pytest_distbench.records.plan.BodyReference`.
    """

    body: object = None
    argument: str = "body"
    called_by: str = ""
    module: str = ""
    params: Mapping[str, Any] | None = None
    args: Sequence[str | os.PathLike[str]] = ()
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None
    read: Mapping[str, Reader] | None = None
    makes_group: bool = True
    seeds: Sequence[int] = (0,)
    world_size: int | None = None
    network: str | None = None
    launches: int | None = None
    timeout: float | None = None
    tolerance: float | Mapping[str, float] | None = None
    name: str = ""
    engine: str = DEFAULT_ENGINE
    timers: Mapping[str, float] | None = None
    oversubscribed: bool = False
    cpus: float | None = None
