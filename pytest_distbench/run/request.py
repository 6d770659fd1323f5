"""What the user asked for: settings of a run, and cases of a test with how to judge them.

What is launched for a case says ``records/plan.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_distbench.judging.outcome import Strictness
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import FIRST_LOOK, LAST_LOOK, looks
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Experiment
from pytest_distbench.records.options import FAKE, Options
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.wanted import RUN_LAUNCHES

if TYPE_CHECKING:
    from pytest_distbench.machine.gpus import Gpus


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """The options of a run, checked, and what was found for them.

    Attributes:
        gpus: those that ranks may use; none without ``--gpu``, and where ranks are on other hosts.
        engine: the command that starts processes on other hosts, if that is the launcher.
        recorders_python: the Python of the commits that recorded the baselines; empty: this one.
        stated: what the user stated of the experiment.
        traces: the folder for them.
    """

    gpus: Gpus
    engine: str = ""
    recorders_python: str = ""
    stated: Experiment = field(default_factory=Experiment)
    traces: Path = Path()

    def on_cpu(self) -> Settings:
        from pytest_distbench.machine.gpus import Gpus  # late: a plain pytest run must not pay for it

        share = "host" if self.shares_host else ""
        return replace(self, gpu=False, gpus=Gpus(), share=share, numa_binding="", backend=("gloo",), platform="")

    @property
    def judges(self) -> bool:
        return self.attach is None and self.control is None

    @property
    def largest(self) -> int:
        return self.world_sizes[-1]

    @property
    def only_these_sizes(self) -> bool:
        """Whether exactly these sizes run. Else the one number is an upper bound."""
        return len(self.world_sizes) > 1

    @property
    def shares_gpu(self) -> bool:
        """Whether several ranks may run on one GPU; nothing is judged or recorded then."""
        return "gpu" in self.share

    @property
    def shares_host(self) -> bool:
        """Whether other runs that say so too may measure at the same time on this host, on other GPUs."""
        return "host" in self.share

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(name.partition(":")[0] for name in self.backend)

    @property
    def fake_rank(self) -> int | None:
        """The rank that the one process of a launch stands for, on the backend ``fake``; negative: from the end.

        None: each rank has a process.
        """
        return int(self.backend[0].partition(":")[2] or 0) if self.backends == (FAKE,) else None

    @property
    def first_launches(self) -> int:
        return self.launches[0] or 1

    @property
    def max_launches(self) -> int:
        """The most launches of one case, while its answer is open."""
        return max(self.first_launches, self.launches[1] or RUN_LAUNCHES)

    @property
    def update_launches(self) -> int | None:
        """Launches of each case in an update; None: as many as its noise needs."""
        first, most = self.launches
        if first is None:
            return None if self.fake_rank is None else 1
        return first if most in (None, first) else None

    @property
    def is_paired(self) -> bool:
        """Whether the candidate is compared with another revision, or another Python, in place of baselines."""
        return bool(self.against or self.against_python)

    @property
    def pairs(self) -> tuple[int, ...]:
        """The numbers of pairs after which such a comparison is judged, ascending."""
        first, most = self.launches
        first = first or FIRST_LOOK
        return looks(first, most or max(first, LAST_LOOK))

    @property
    def confirm_budget_s(self) -> float:
        """Seconds of the run for confirmation by interleaved A/B, the most suspicious cases first."""
        return self.confirm[1]

    @property
    def logs(self) -> Path | None:
        return self.out and self.out / "logs"

    @property
    def policy(self) -> Strictness:
        given = {"distbench-strict": self.strict, "distbench-fail-on-improvement": self.fail_on_improvement}
        return Strictness(options=frozenset(name for name in given if given[name]), no_baseline=self.no_baseline)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """A case to measure, or to derive from others, and how to judge it. What is launched for it; None: it is derived.

    Its parameters are stored, and hold no secret. So many launches are judged first, and an update makes at least as
    many; pairs have numbers of their own. A regression is expected, or fails nothing, where there is a reason for it.
    """

    nodeid: str
    line: int = 0
    launched: LaunchRequest | None = None
    case: Case
    terms: Terms
    launches: int
    xfail_perf: str = ""
    advisory: str = ""
    is_advisory_of_timings: bool = False
