"""Settings of a run, and requests of cases: what is launched, and how it is judged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_distbench.judging.thresholds import FIRST_LOOK, LAST_LOOK, looks
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Experiment
from pytest_distbench.records.options import FAKE, Options
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.wanted import RUN_LAUNCHES

if TYPE_CHECKING:  # to read the options imports no rule
    from pytest_distbench.judging.outcome import Strictness
    from pytest_distbench.judging.terms import Terms
    from pytest_distbench.machine.gpus import Gpus


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """The checked options of a run, and what was found for them.

    Attributes:
        gpus: GPUs that ranks may use; none without ``--gpu``, and if ranks are on other hosts.
        engine: the command that starts processes on other hosts, if that is the launcher.
        baseline_python: the Python of the baseline commits, or "" for the running one.
        stated: facts of the experiment that the user stated.
        traces: the folder for traces.
    """

    gpus: Gpus
    engine: str = ""
    baseline_python: str = ""
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
        """Whether exactly these world sizes run; else the one number is an upper bound."""
        return len(self.world_sizes) > 1

    @property
    def shares_gpu(self) -> bool:
        """Whether several ranks may run on one GPU, without being judged or recorded."""
        return "gpu" in self.share

    @property
    def shares_host(self) -> bool:
        """Whether other runs with this setting may measure at the same time on this host, on other GPUs."""
        return "host" in self.share

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(name.partition(":")[0] for name in self.backend)

    @property
    def fake_rank(self) -> int | None:
        """The rank that the one process of a launch simulates, or None without the backend ``fake``.

        A negative one counts from the end.
        """
        return int(self.backend[0].partition(":")[2] or 0) if self.backends == (FAKE,) else None

    @property
    def first_launches(self) -> int:
        return self.launches[0] or 1

    @property
    def max_launches(self) -> int:
        """The most launches of a case that is undecided."""
        return max(self.first_launches, self.launches[1] or RUN_LAUNCHES)

    @property
    def update_launches(self) -> int | None:
        """Launches of each case in an update, or None for as many as its noise needs."""
        first, most = self.launches
        if first is None:
            return None if self.fake_rank is None else 1
        return first if most in (None, first) else None

    @property
    def is_paired(self) -> bool:
        """Whether the candidate is compared with another revision, or another Python, instead of baselines."""
        return bool(self.against or self.against_python)

    @property
    def pairs(self) -> tuple[int, ...]:
        """Ascending numbers of pairs after which A/B is judged."""
        first, most = self.launches
        first = first or FIRST_LOOK
        return looks(first, most or max(first, LAST_LOOK))

    @property
    def confirm_budget_s(self) -> float:
        """Seconds for confirmation in this run; the most suspicious cases come first."""
        return self.confirm[1]

    @property
    def logs(self) -> Path | None:
        return self.out and self.out / "logs"

    @property
    def policy(self) -> Strictness:
        from pytest_distbench.judging.outcome import Strictness

        given = {"distbench-strict": self.strict, "distbench-fail-on-improvement": self.fail_on_improvement}
        return Strictness(options=frozenset(name for name in given if given[name]), no_baseline=self.no_baseline)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """A case to measure or derive, and how to judge it.

    Attributes:
        launched: what is launched for it, or None if it is derived from other cases.
        case: its identity, which is stored and has no secret.
        launches: number of launches that are judged first, and the least of an update; pairs have numbers of their own.
        xfail_perf: reason why a regression is expected, or "".
        advisory: reason why its verdicts fail no test, or "".
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
