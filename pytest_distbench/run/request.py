"""What one call of ``distbench.run`` or ``measure`` asks for: what to launch, and how to judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.elastic import ElasticJob
from pytest_distbench.records.plan import BodyReference, Work
from pytest_distbench.records.pool import Pool
from pytest_distbench.records.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where the ranks of a launch run.

    Attributes:
        folder: with placeholders; None: where pytest runs.
        is_mirrored: not in the folder itself, but in a folder of the launch's own in which all of it is linked.
        variables: added to the environment, with placeholders.
    """

    folder: str | None = None
    is_mirrored: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What to launch.

    Attributes:
        title: of the case, slashes separating folders: what its logs are kept under.
        body: what every rank runs.
        params: as the ranks get them.
        workplace: where a script runs.
        read: metrics to be read after the launch, by name.
        seeds: the body runs once for each.
        world_size: ranks of the process group.
        backend: of the process group.
        device: what ranks compute on.
        stands_for: the one rank that there is a process for; None: each has one.
        timeout_s: for one launch.
        elastic: what changes the membership of the group; None: nothing does.
        pool: jobs that share slots; None: there is one.
        works: what runs in the pool, by the owners of its slots.
    """

    title: str
    body: BodyReference
    params: dict[str, Any]
    workplace: Workplace = Workplace()
    read: Mapping[str, Reader] = field(default_factory=dict)
    seeds: tuple[int, ...]
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    timeout_s: float
    stands_for: int | None = None
    elastic: ElasticJob | None = None
    pool: Pool | None = None
    works: Mapping[str, Work] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """A case to measure, or to derive from others, and how to judge it.

    Attributes:
        nodeid: the pytest node, for reports.
        case: the measured point. Its parameters are stored, and hold no secret.
        terms: how it is judged.
        launches: launches judged first; an update makes at least as many. Pairs have numbers of their own.
        xfail_perf: why a regression is expected; empty: it is not.
    """

    nodeid: str
    case: Case
    terms: Terms
    launches: int
    xfail_perf: str = ""
