"""The eight verdicts, and the reasons that they are given for: each has a code, and is one row here.

A verdict says whether a number is worse; its code says why one thinks so, and all that follows depends on the code.
``distbench explain CODE`` prints the row. A row that a test module or a conftest adds counts as ours do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

VerdictName = Literal["regressed", "changed", "missing", "inconclusive", "new", "environment", "improved", "unchanged"]

ReasonCode = str
"""Name of a reason, a key of :data:`REASONS`."""

Severity = Literal["plain", "doubt", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a verdict is given, and what follows.

    Attributes:
        means: what happened, in a sentence.
        next_step: what to do; empty: nothing.
        mark: one character before its row, so that nothing depends on colour.
        fails: the test, under the default policy.
        fails_under: the option, without its dashes, under which it fails; empty: under none.
        is_answer: the question was answered, one way or the other.
        updates: ``--distbench-update`` writes the number, though it is asked for what changed only.
        is_told: the end of a run prints the sentence of the verdict.
        warns: GitHub gets a warning where nothing failed.
        is_quiet: tables that list what changed count it only.
        may_be_confirmed: interleaved A/B with the baseline commit may overrule it, of a timing or a training.
        is_comparable: the number was compared; else there was nothing that it could be compared with.
    """

    verdict: VerdictName
    means: str
    next_step: str = ""
    mark: str
    fails: bool = False
    fails_under: str = ""
    is_answer: bool = False
    updates: bool = False
    is_told: bool = False
    warns: bool = False
    is_quiet: bool = False
    may_be_confirmed: bool = False
    is_comparable: bool = True

    @property
    def severity(self) -> Severity:
        """Severity of a line that prints it: whether something failed, or nobody knows."""
        if self.fails:
            return "failure"
        return "doubt" if self.is_told and not self.is_answer else "plain"


VERDICTS: dict[VerdictName, Reason] = {
    "regressed": Reason(
        verdict="regressed",
        means="The number is worse than the baseline by more than the threshold, or violates its bound.",
        next_step="the failure lists the causes that were seen; the code of the reason says more",
        mark="!",
        fails=True,
        is_answer=True,
        updates=True,
        may_be_confirmed=True,
    ),
    "changed": Reason(
        verdict="changed",
        means="What is compared exactly differs: communication, losses, an exact number, the workload.",
        next_step="the failure lists what was added and removed; --distbench-update records it if it is intended",
        mark="!",
        fails=True,
        is_answer=True,
        updates=True,
        may_be_confirmed=True,
    ),
    "missing": Reason(
        verdict="missing",
        means="The baseline has a number, or a part of it, that this run did not measure.",
        next_step="look at what is not measured; --distbench-update removes it from the baseline if it is intended",
        mark="!",
        fails=True,
        is_answer=True,
        updates=True,
    ),
    "inconclusive": Reason(
        verdict="inconclusive",
        means="The evidence does not tell whether the number is worse: noise, a busy machine, or nothing comparable.",
        next_step="the code of the reason says what to do; with --distbench-strict it fails",
        mark="?",
        fails_under="distbench-strict",
        is_told=True,
        warns=True,
    ),
    "new": Reason(
        verdict="new",
        means="No baseline is stored for this case on this platform.",
        next_step="record one with --distbench-update=new and commit it, or compare with a branch: --distbench-against",
        mark="N",
        updates=True,
        warns=True,
    ),
    "environment": Reason(
        verdict="environment",
        means="The machine or its software changed the number, not the code.",
        next_step="find out what changed; --distbench-update records new baselines if it is to stay",
        mark="~",
        is_answer=True,
        updates=True,
        is_told=True,
        warns=True,
    ),
    "improved": Reason(
        verdict="improved",
        means="The number is better than the baseline by more than the threshold.",
        next_step="keep the gain with --distbench-update: otherwise losing it again passes",
        mark="+",
        fails_under="distbench-fail-on-improvement",
        is_answer=True,
        updates=True,
    ),
    "unchanged": Reason(
        verdict="unchanged",
        means="The number differs from the baseline by no more than the threshold, or is within its bound.",
        next_step="nothing",
        mark=" ",
        is_answer=True,
        is_quiet=True,
    ),
}
"""By name, the most severe first: that is their order in reports. What follows from a reason follows from its verdict,
unless its row says otherwise."""


def because(verdict: VerdictName, means: str, next_step: str = "", **consequences: Any) -> Reason:
    """A reason for a verdict; of what follows only that which differs from the verdict's row is given."""
    return replace(VERDICTS[verdict], means=means, next_step=next_step, **consequences)


def severity_order(code: ReasonCode) -> tuple[int, int]:
    """Sort key of a reason: the most severe verdict first, and its reasons in the order of their table."""
    return list(VERDICTS).index(REASONS[code].verdict), list(REASONS).index(code)


_ACCEPT = "if the change is intended, record it with --distbench-update and commit the baselines"
_QUIETER = "use a quieter machine (distbench doctor), or more launches (--distbench-launches)"
_RECORD = "record the baseline again with --distbench-update"

REASONS: dict[ReasonCode, Reason] = {
    "bound": because(
        "regressed",
        means="The number violates an absolute bound, which needs no baseline.",
        next_step="mend the code, or change the bound: in the test (bounds=, at_most=, at_least=) or the baseline file",
        updates=False,
        may_be_confirmed=False,
    ),
    "beyond-threshold": because(
        "regressed",
        means="The number is worse than the baseline by more than the threshold, which is wider than the noise.",
        next_step=f"see the listed causes; distbench verdict finds the commit with git bisect; {_ACCEPT}",
    ),
    "every-launch": because(
        "regressed",
        means="Every launch is worse than every launch of the baseline. The values have no ratio, as one is 0 or less.",
        next_step=f"see the causes that the failure lists; {_ACCEPT}",
    ),
    "goal-missed": because(
        "regressed",
        means="The training did not reach its goal, or needed more steps than the baseline's threshold allows.",
        next_step=f"look at the curve of the loss and of the evaluation in the report; {_ACCEPT}",
    ),
    "no-value": because(
        "regressed",
        means="Some launches measured no value for a metric that they recorded.",
        next_step="look for a loop that is not entered, or a goal that is not reached",
    ),
    "exact-number": because(
        "changed",
        means="A number that is compared exactly differs from the baseline's, under the same software.",
        next_step=_ACCEPT,
    ),
    "unstable-number": because(
        "changed",
        means="A number that is compared exactly differs between launches of this run.",
        next_step="find what is random in it, or record it with better='lower' or better='info'",
    ),
    "losses": because(
        "changed",
        means="A seeded training computes other losses than the baseline's: the curve diverges.",
        next_step=f"the step at which it diverges tells what to look at; {_ACCEPT}",
    ),
    "training-number": because(
        "changed",
        means="A number of a seeded training differs from the baseline's by more than the threshold.",
        next_step=f"compare the curves of the loss in the report; {_ACCEPT}",
    ),
    "ranks-apart": because(
        "changed",
        means="The mean over the ranks agrees with the baseline, and the ranks are farther apart than they were.",
        next_step="look for ranks that compute different things: seeds, data shards, gradients that are not averaged",
    ),
    "seed-lost": because(
        "changed",
        means="Launches of this run differ at their first losses, and the baseline's did not: it lost its seed.",
        next_step="call torch.manual_seed in the body before the model is made; seed data and samplers, too",
    ),
    "not-repeatable": because(
        "changed",
        means="Launches of this run compute other losses than each other, and the baseline's did not.",
        next_step="look for arithmetic whose order is not fixed: atomics, dynamic batches, threads",
    ),
    "communication": because(
        "changed",
        means="An iteration sends other collectives, or more or fewer bytes. This is an exact comparison, no timing.",
        next_step=f"see the list of what was added and removed; {_ACCEPT}",
        may_be_confirmed=False,
    ),
    "names-a-run": because(
        "changed",
        means="The workload's definition contains something that changes in every run: a date, a commit, a folder.",
        next_step=f"take it out of the parameters, or write {{launch_dir}} in its place; then {_RECORD}",
        is_answer=False,
        is_told=True,
        may_be_confirmed=False,
    ),
    "not-measured": because(
        "missing",
        means="The baseline has this number, or a part of it, and this run did not measure it.",
        next_step=(
            "look for a body that returns early, a loop that is not entered or a renamed metric; if it is intended, "
            "--distbench-update removes it from the baseline, and --distbench-prune a whole case"
        ),
    ),
    "nothing-timed": because(
        "missing",
        means="The timing is 0 s: nothing ran in the loop, or not where this timing is taken.",
        next_step="look at what the loop does on this device",
    ),
    "noise": because(
        "inconclusive",
        means="The number looks worse, and the noise is too large to say so.",
        next_step=_QUIETER,
    ),
    "more-launches": because(
        "inconclusive",
        means="The launches so far cannot decide, and the run may make no more of them.",
        next_step="allow more launches with --distbench-launches=N:MAX",
    ),
    "machine-busy": because(
        "inconclusive",
        means="The number is worse, and other processes kept the machine busier than when the baseline was recorded.",
        next_step="end them (distbench doctor names them), or measure again later",
    ),
    "gpu-throttled": because(
        "inconclusive",
        means="The number is worse, and a GPU was slower than when the baseline was recorded: heat, power, its clock.",
        next_step="look at the GPU with distbench doctor, and measure again when it is cool",
    ),
    "not-confirmed": because(
        "inconclusive",
        means="The number is suspicious; interleaved A/B with the baseline commit was not possible or not finished.",
        next_step="the sentence says why; give it more time with --distbench-confirm=auto:SECONDS",
    ),
    "ab-disagrees": because(
        "inconclusive",
        means="Two rounds of interleaved A/B disagree, or the baseline commit differs as much from itself.",
        next_step=_QUIETER,
    ),
    "shared-code": because(
        "inconclusive",
        means="A/B shows no difference, but code that pytest evaluates for both sides is not the baseline commit's.",
        next_step="look at the named files; --distbench-against runs each side with its own",
    ),
    "one-seed": because(
        "inconclusive",
        means="One seed's number changed by no more than chance can change it.",
        next_step="measure several seeds: seeds=range(5)",
    ),
    "flat-curve": because(
        "inconclusive",
        means="The losses hardly change, so a fault of the training would not show in them.",
        next_step="record more digits or more steps, or train something that learns",
    ),
    "not-deterministic": because(
        "inconclusive",
        means="Launches of the same seeded training compute other losses: its arithmetic does not repeat.",
        next_step="switch deterministic algorithms on where a curve is to be compared",
    ),
    "impossible": because(
        "inconclusive",
        means="The number cannot have been measured, or nothing can be computed with it.",
        next_step="look at how the test records it",
    ),
    "other-workload": because(
        "inconclusive",
        means="The baseline is of another workload or of other conditions.",
        next_step=_RECORD,
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "other-definition": because(
        "inconclusive",
        means="The metric is defined in another way than in the baseline: its unit, direction or how it is measured.",
        next_step=_RECORD,
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "other-software": because(
        "inconclusive",
        means="An exact number changed, and so did the software that computes it.",
        next_step=_RECORD,
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "unfit-baseline": because(
        "inconclusive",
        means="The baseline cannot be compared with: too few launches, no value, or values that differ.",
        next_step=_RECORD,
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "not-possible": because(
        "inconclusive",
        means="This run could not measure or compare the number here; the sentence says why.",
        next_step="see the sentence",
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "unseeded": because(
        "inconclusive",
        means="Launches of the same training differ at their first losses, so no curve can be compared.",
        next_step="call torch.manual_seed in the body before the model is made; seed data and samplers, too",
        mark="x",
    ),
    "not-evaluated": because(
        "inconclusive",
        means="The case failed by another metric, so no more launches were made for this one.",
        next_step="mend the failure first",
    ),
    "no-baseline": because(
        "new",
        means="No baseline is stored for this case on this platform.",
        next_step="record one with --distbench-update=new and commit it, or compare with a branch: --distbench-against",
    ),
    "slower-machine": because(
        "environment",
        means="Slower than the baseline, and not slower in interleaved A/B with the baseline commit: not the code.",
        next_step=f"find out what changed on this machine or in its software; {_RECORD} if it is to stay",
    ),
    "numerics-here": because(
        "environment",
        means="The baseline commit computes the same other digits here: the environment changed them, not the code.",
        next_step=_RECORD,
    ),
    "better": because(
        "improved",
        means="The number is better than the baseline by more than the threshold.",
        next_step="keep the gain with --distbench-update: otherwise losing it again passes",
    ),
    "numerics": because(
        "unchanged",
        means="The training follows the same curve with other digits: another kernel, order of sums or library.",
        next_step=f"nothing if this is intended; else {_RECORD}",
        mark="~",
        updates=True,
        is_told=True,
        warns=True,
        is_quiet=False,
    ),
    "low-power": because(
        "unchanged",
        means="Nothing indicates a change, but the comparison would have missed a slowdown of the tolerance.",
        next_step=f"{_QUIETER}, or --distbench-confirm=always",
        fails_under="distbench-strict",
        is_answer=False,
    ),
    "coarse-digits": because(
        "unchanged",
        means="The losses agree, but they have too few digits or steps to show a fault of the training.",
        next_step="record more digits, or more steps",
        fails_under="distbench-strict",
        is_answer=False,
    ),
    "within-bound": because(
        "unchanged",
        means="The number is within its bound, and no baseline is stored to compare it with.",
        next_step="record one with --distbench-update=new",
        updates=True,
    ),
    "within-threshold": because(
        "unchanged",
        means="The number differs from the baseline by no more than the threshold.",
    ),
    "cleared": because(
        "unchanged",
        means="The timing was suspicious, and interleaved A/B with the baseline commit shows no slowdown.",
    ),
    "equal": because("unchanged", means="The number equals the baseline's."),
    "not-judged": because(
        "unchanged",
        means="The number is recorded for information, and not judged.",
    ),
}


def reason(code: ReasonCode) -> Reason:
    """The row of a code."""
    try:
        return REASONS[code]
    except KeyError:
        raise ValueError(
            f"unknown reason {code!r}; wanted one of {', '.join(REASONS)}, or one of yours, whose module has to be "
            "imported first: -p MODULE"
        ) from None
