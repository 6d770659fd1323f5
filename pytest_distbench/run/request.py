"""What the user asked for: settings of a run, and cases of a test with how to judge them.

What is launched for a case says ``records/plan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_distbench.judging.terms import Strictness, Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Experiment

if TYPE_CHECKING:
    from pytest_distbench.launch.starters import Engine
    from pytest_distbench.machine.gpus import Gpus
    from pytest_distbench.records.network import Network
    from pytest_distbench.records.wanted import Confirm, TracedCases, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """One job of a pool, as :func:`pytest_distbench.elastic.job` describes it."""

    name: str
    body: Callable[..., object] | str
    nodes: int | tuple[int, int]
    submit_s: float
    params: Mapping[str, Any] | None
    seed: int
    ends_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedServing:
    """The serving of a pool, as :func:`pytest_distbench.elastic.serving` describes it."""

    body: Callable[..., object] | str
    demand: Sequence[tuple[float, int]]
    params: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstSettings:
    """What the candidate is to be compared with in place of baselines, as asked for.

    An empty revision is the working tree, an empty interpreter the running one. Links are paths, relative to the tests'
    root, that the other revision lacks and gets from the working tree. It is judged after these numbers of pairs,
    ascending.
    """

    revision: str
    interpreter: str
    links: tuple[str, ...]
    tolerance: float
    looks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmSettings:
    """How suspicious comparisons with baselines are confirmed: by interleaved A/B with the baseline commit.

    Attributes:
        mode: ``auto``: suspicious cases; ``always``: all that have timings; ``off``: none.
        budget_s: seconds of the run for it, the most suspicious cases first.
        links: paths, relative to the tests' root, that the revision lacks and gets from the working tree.
        interpreter: the Python of that revision; empty: this one.
    """

    mode: Confirm = "off"
    budget_s: float = 60.0
    links: tuple[str, ...] = ()
    interpreter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for, checked.

    Attributes:
        only_these_sizes: a list of world sizes was given: exactly those run. Else the one number is an upper bound.
        shares_gpu: several ranks may run on one GPU; nothing is judged or recorded then.
        shares_host: other runs that say so too may measure at the same time on this host, on other GPUs.
        numa_binding: which CPUs near its GPU a rank is bound to, a mode of torchrun's; empty: to none.
        attach: the rank that gets the terminal.
        fake_rank: the rank that the one process of a launch stands for, on the backend ``fake``; negative: from the
            end. None: each rank has a process.
        max_launches: the most launches of one case, while its answer is open.
        update_launches: launches of each case in an update; None: as many as its noise needs.
        prune: delete the baselines that a whole, green run did not use.
        advisory: no verdict fails its test.
        max_message_bytes: larger messages are not sent; None: no limit.
        preload: modules to import once for all ranks.
        full: tests with the marker ``full``, the slow ones, run too.
        network: between ranks whose test does not choose one; None: whatever there is.
        data: where full-size data sets lie, an absolute path or a URL; empty: nobody says.
        control: the slowdown that is injected into every case, as a share, or by the tolerance of the case.
        traces: the folder for them.
    """

    world_sizes: tuple[int, ...]
    only_these_sizes: bool
    gpu: bool
    gpus: Gpus
    shares_gpu: bool
    shares_host: bool = False
    numa_binding: str
    attach: int | None
    backends: tuple[str, ...]
    fake_rank: int | None = None
    launcher: str
    engine: Engine | None = None
    launches: int
    max_launches: int
    given_max_launches: bool = False
    update_launches: int | None
    timeout_s: float
    baselines: Path
    platform: str | None
    update: Update | None
    prune: bool
    policy: Strictness
    tolerance: float
    advisory: bool = False
    json: Path | None
    report: Path | None = None
    logs: Path | None
    experiment: Experiment = field(default_factory=Experiment)
    max_message_bytes: int | None
    preload: tuple[str, ...]
    full: bool = False
    network: Network | None = None
    data: str = ""
    against: AgainstSettings | None = None
    confirm: ConfirmSettings = ConfirmSettings()
    control: float | Literal["tolerance"] | None = None
    trace: TracedCases | None = None
    traces: Path = Path()

    def on_cpu(self) -> Settings:
        from pytest_distbench.machine.gpus import Gpus  # late: a plain pytest run must not pay for it

        return replace(
            self, gpu=False, gpus=Gpus(), shares_gpu=False, numa_binding="", backends=("gloo",), platform=None
        )

    @property
    def judges(self) -> bool:
        return self.attach is None and self.control is None

    @property
    def largest(self) -> int:
        return self.world_sizes[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """A case to measure, or to derive from others, and how to judge it.

    Its parameters are stored, and hold no secret. So many launches are judged first, and an update makes at least as
    many; pairs have numbers of their own. A regression is expected, or fails nothing, where there is a reason for it.
    """

    nodeid: str
    line: int = 0
    case: Case
    terms: Terms
    launches: int
    xfail_perf: str = ""
    advisory: str = ""
