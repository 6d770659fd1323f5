"""The kinds of metrics and of verdicts, and what follows from each: a new kind is one row here.

A row that a test module or a conftest adds counts as ours do. A metric kind that bodies record has to be known in the
ranks too: add its row in the module of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_distbench.records.record import Record
from pytest_distbench.records.summaries import quantile
from pytest_distbench.units import why_impossible

Better = str
"""Name of a metric kind, a key of :data:`METRIC_KINDS`."""

VerdictName = str
"""Name of a verdict kind, a key of :data:`VERDICT_KINDS`."""

Reduce = Literal["max", "min", "mean", "sum", "rank0", "all"]
Sign = Literal[-1, 0, 1]
Shape = Literal["any", "series", "number"]
Severity = Literal["plain", "doubt", "failure"]

TRAINING_RULES = ("curve", "same", "steps", "floor")
STEADY_RULES = ("exact", "memory", *TRAINING_RULES, "none")
"""What these judge does not scatter between launches of the same code; what any other rule judges does."""

FAST_SIDE = 0.25
"""A launch's value is the 25th percentile on the fast side: it settles first and ignores the scheduler's spikes."""


def _last(series: Sequence[float]) -> float:
    return series[-1]


def _exact(limit: float) -> str:
    del limit
    return "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricKind:
    """What it means that a metric is ``better="lower"``, ``"exact"``, ...

    Attributes:
        summary: for whom records it: what is judged.
        reduce: over the ranks that recorded it, unless they say otherwise.
        launch_value: of a series: the value that stands for the launch.
        rule: how it is judged. ``noisy``: by launches as samples, or by pairs of them; ``exact``: equal as long as the
            software is the same; :data:`TRAINING_RULES`: for what a seeded training computes
            (``judging.training_rule``); ``none``: it is shown, not judged; any other: of ``judging.metric.RULES``.
        sign: of a noisy kind: 1 where a larger number is worse, -1 where a smaller one is.
        has_fast_side: of a series: the launch's value is of its fast side, and is judged together with its fastest
            iteration; the slow ones say how busy the machine was (``judging.stored_rule``).
        shape: ``series`` or ``number`` where only that can be recorded; ``any``: both.
        limit_text: how a limit, a fraction of the baseline, is printed.
        tolerance: that is used where the test and the baseline say nothing of the metric itself; None: the run's.
    """

    summary: str
    reduce: Reduce
    launch_value: Callable[[Sequence[float]], float] = _last
    rule: str
    sign: Sign = 0
    has_fast_side: bool = False
    shape: Shape = "any"
    keeps_series: bool = False
    limit_text: Callable[[float], str] = _exact
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.is_noisy and not self.sign:
            raise ValueError(
                f"a kind of metrics of rule {self.rule!r} and no sign; wanted sign=1 where a larger number is worse, "
                "sign=-1 where a smaller one is"
            )

    @property
    def is_noisy(self) -> bool:
        """Whether it scatters between launches of the same code, and is judged with that."""
        return self.rule not in STEADY_RULES

    @property
    def is_judged(self) -> bool:
        """Whether there is a verdict on it that counts."""
        return self.rule != "none"

    @property
    def is_of_training(self) -> bool:
        """Whether it is a number of a seeded training: repeated exactly under the same arithmetic, else over seeds."""
        return self.rule in TRAINING_RULES

    @property
    def repeats_exactly(self) -> bool:
        """Whether every digit of it counts."""
        return self.rule == "exact" or self.is_of_training

    def why_impossible(self, values: Sequence[float], unit: str, *, is_series: bool) -> str:
        """Why nothing that is measured has these values, in a clause; empty where something can.

        Of a series the value that stands for the launch counts, and any below 0: one of many may be too short for its
        clock.
        """
        counting = [v for v in values if v < 0] + [self.launch_value(values)] if is_series and values else values
        return next(filter(None, (why_impossible(value, unit) for value in counting)), "")


METRIC_KINDS: dict[str, MetricKind] = {
    "higher": MetricKind(
        summary="a throughput: may not fall",
        reduce="min",
        launch_value=lambda series: quantile(series, 1 - FAST_SIDE),
        rule="noisy",
        sign=-1,
        limit_text=lambda limit: f"-{1 - 1 / (1 + limit):.0%}",
    ),
    "lower": MetricKind(
        summary="a time or a size: may not rise",
        reduce="max",
        launch_value=lambda series: quantile(series, FAST_SIDE),
        rule="noisy",
        sign=1,
        has_fast_side=True,
        limit_text=lambda limit: f"+{limit:.0%}",
    ),
    "exact": MetricKind(summary="must be equal", reduce="all", rule="exact", keeps_series=True),
    "info": MetricKind(summary="is shown, not judged", reduce="rank0", rule="none", keeps_series=True),
    "curve": MetricKind(
        summary="the first losses of a seeded training: must follow the baseline's step by step",
        reduce="mean",
        rule="curve",
        shape="series",
        keeps_series=True,
        limit_text=lambda limit: f"{limit:.0e}",
    ),
    "same": MetricKind(
        summary="a number of a seeded training that may neither rise nor fall",
        reduce="mean",
        rule="same",
        shape="number",
        limit_text=lambda limit: f"±{limit:.1%}",
    ),
    "steps": MetricKind(
        summary="steps to a goal: may not rise",
        reduce="all",
        rule="steps",
        shape="number",
        limit_text=lambda limit: f"+{limit:.1%}",
    ),
    "floor": MetricKind(
        summary="a quality at the end of a training: may not fall",
        reduce="all",
        rule="floor",
        shape="number",
        limit_text=lambda limit: f"-{limit:.1%}",
    ),
    "memory": MetricKind(
        summary="an amount of memory: may not rise, whatever else the machine does",
        reduce="max",
        rule="memory",
        sign=1,
        shape="number",
        limit_text=lambda limit: f"+{limit:.0%}",
        tolerance=0.2,
    ),
}
"""By the name that ``better=`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictKind:
    """What it means that a metric *regressed*, is *unchanged*, ...

    Attributes:
        mark: one character before its row, so that nothing depends on colour.
        words: in the counts at the end of a run: ``3 within limits``.
        paired_words: the same beside another revision; empty: as ``words``.
        fails_under: the option, without its dashes, under which it fails its test; empty: under none.
        is_answer: the question was answered, one way or the other.
        moved: the number is not the stored one: an update in mode ``changed`` writes it.
        wants_update: such an update writes it although nothing is known to have moved.
        is_told: its reason is told at the end of a run.
        warns: it is worth a warning on GitHub where nothing failed.
        is_quiet: tables that list what moved count it only.
        means: what it says, in a sentence, for ``distbench explain``.
    """

    mark: str
    words: str
    means: str = ""
    next_step: str = ""
    paired_words: str = ""
    fails: bool = False
    fails_under: str = ""
    is_answer: bool = False
    moved: bool = False
    wants_update: bool = False
    is_told: bool = False
    warns: bool = False
    is_quiet: bool = False

    @property
    def severity(self) -> Severity:
        """Of a line that tells of it: whether something failed, or nobody knows."""
        if self.fails:
            return "failure"
        return "doubt" if self.is_told and not self.is_answer else "plain"


_TAKE_IT = "where it is meant, --distbench-update takes the new number into the baseline"

VERDICT_KINDS: dict[str, VerdictKind] = {
    "beyond": VerdictKind(
        mark="!",
        words="beyond a bound",
        means="The number is above or below a bound that somebody has set, whatever a baseline says.",
        next_step="the bound stands in the test (bounds=, at_most=, at_least=) or in the entry of the store",
        fails=True,
        is_answer=True,
    ),
    "regressed": VerdictKind(
        mark="!",
        words="regressed",
        means="Worse than what it was compared with, by more than the limit and by more than the noise explains.",
        next_step=(
            "the failure tells the causes that were seen; git bisect run distbench verdict finds the commit; "
            f"{_TAKE_IT}"
        ),
        fails=True,
        is_answer=True,
        moved=True,
    ),
    "lost": VerdictKind(
        mark="!",
        words="no longer measured",
        means="The baseline has the number, and this run did not measure it, or less of it.",
        next_step=(
            "a body that leaves early, a loop that is not entered, a renamed metric; where it is meant, "
            "--distbench-update takes it out, and distbench baseline prune a whole case"
        ),
        fails=True,
        is_answer=True,
        wants_update=True,
    ),
    "changed": VerdictKind(
        mark="!",
        words="with another fingerprint",
        means="An iteration sends other collectives, or more or fewer bytes. Compared exactly, without a clock.",
        next_step=f"the failure lists what was added and what is gone; {_TAKE_IT}",
        fails=True,
        is_answer=True,
        wants_update=True,
    ),
    "volatile": VerdictKind(
        mark="!",
        words="of a workload that is another one in every run",
        means="All that differs in the workload names a run (a date, a commit, a temporary name): never comparable.",
        next_step="take that value out of what defines the workload; then record it anew with --distbench-update",
        fails=True,
        wants_update=True,
        is_told=True,
    ),
    "inconclusive": VerdictKind(
        mark="?",
        words="inconclusive",
        means=(
            "It looks worse, and the noise is too large to say so; or the machine was busier, or a GPU held back. Of a "
            "curve: it does not move, so that no fault of the training would show."
        ),
        next_step=(
            "--distbench-confirm and --distbench-against measure in turns, --distbench-launches N more often; "
            "distbench doctor looks at the machine; of a curve more digits, or a training that learns"
        ),
        fails_under="distbench-strict",
        is_told=True,
        warns=True,
    ),
    "unseen": VerdictKind(
        mark=" ",
        words="too noisy or coarse to show their tolerance",
        means="Nothing speaks against it, but a change of the tolerance would not have been seen reliably.",
        next_step=(
            "--distbench-launches N sees more, and --distbench-confirm=always; "
            "of a curve more digits, or more of its steps"
        ),
        fails_under="distbench-strict",
        is_quiet=True,
    ),
    "incomparable": VerdictKind(
        mark="x",
        words="not comparable",
        means="The baseline is of another workload, another unit or, of an exact number, other software.",
        next_step="look at what differs; record it anew with --distbench-update",
        fails_under="distbench-strict",
        wants_update=True,
        is_told=True,
        warns=True,
    ),
    "unseeded": VerdictKind(
        mark="x",
        words="of a training that is not seeded",
        means="Launches of the same training differ at its first losses, so that no curve can be compared.",
        next_step="torch.manual_seed in the body, before the model is made; seeded data and samplers",
        fails_under="distbench-strict",
        is_told=True,
        warns=True,
    ),
    "missing": VerdictKind(
        mark="N",
        words="without a baseline",
        paired_words="not in the reference",
        means="Nothing is stored to compare with, for this test on this class of hardware.",
        next_step="--distbench-update=new records it; commit it. Or compare with a revision: --distbench-against main",
        wants_update=True,
        warns=True,
    ),
    "drifted": VerdictKind(
        mark="~",
        words="drifted (same curve, other digits)",
        means="A seeded training computes other digits along the same curve: another kernel, order or library.",
        next_step="nothing, if software changed; --distbench-update takes the digits of today",
        is_answer=True,
        moved=True,
        is_told=True,
        warns=True,
    ),
    "machine": VerdictKind(
        mark="~",
        words="slower by a drifted machine, not by the code",
        means="Slower than the stored numbers, and not slower in turns with the revision that recorded them.",
        next_step="find out what became of the machine or its software; --distbench-update takes new baselines",
        is_answer=True,
        moved=True,
        is_told=True,
        warns=True,
    ),
    "improved": VerdictKind(
        mark="+",
        words="better than the baseline",
        paired_words="better than the reference",
        means="Better than what it was compared with, by more than the limit and by more than the noise explains.",
        next_step="--distbench-update=changed keeps the gain: without it, losing it again is green",
        fails_under="distbench-fail-on-improvement",
        is_answer=True,
        moved=True,
    ),
    "within": VerdictKind(
        mark=" ",
        words="within bounds, without a baseline",
        paired_words="within bounds, not in the reference",
        means="The number holds its bounds, and there is no baseline to compare it with.",
        next_step="nothing; --distbench-update=new records it, so that changes within the bounds are seen too",
        is_answer=True,
        wants_update=True,
        is_quiet=True,
    ),
    "unchanged": VerdictKind(
        mark=" ",
        words="within limits",
        means="No more different from what it was compared with than the limit allows or the noise explains.",
        next_step="nothing",
        is_answer=True,
        is_quiet=True,
    ),
}
"""By name, the gravest first: that is their order in reports."""


def metric_kind(name: Better) -> MetricKind:
    """Look a metric kind up."""
    try:
        return METRIC_KINDS[name]
    except KeyError:
        raise ValueError(
            f"unknown kind of metrics {name!r}; wanted one of {', '.join(METRIC_KINDS)}, or one of yours, whose module "
            "has to be imported first: -p MODULE"
        ) from None


class OfKind(Record, frozen=True, kw_only=True):
    """What has a metric kind; reading one of an unknown kind from a file is an error."""

    better: Better

    def __post_init__(self) -> None:
        metric_kind(self.better)

    @property
    def is_noisy(self) -> bool:
        """Whether it scatters between launches of the same code."""
        return METRIC_KINDS[self.better].is_noisy

    @property
    def is_judged(self) -> bool:
        """Whether there is a verdict on it that counts."""
        return METRIC_KINDS[self.better].is_judged
