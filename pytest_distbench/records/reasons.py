"""The reasons that a verdict is given for: each has a code, and is one row here.

A verdict says whether a number is worse; its code says why. ``distbench explain CODE`` prints the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_distbench.records.kinds import VerdictName

ReasonCode = str
"""Name of a reason, a key of :data:`REASONS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a verdict is given.

    Attributes:
        kind: of the verdict.
        means: what happened, in a sentence.
        next_step: what to do; empty: nothing.
    """

    kind: VerdictName
    means: str
    next_step: str = ""


_ACCEPT = "if the change is intended, record it with --distbench-update and commit the baselines"
_QUIETER = "use a quieter machine (distbench doctor), or more launches (--distbench-launches)"
_RECORD = "record the baseline again with --distbench-update"

REASONS: dict[ReasonCode, Reason] = {
    "bound": Reason(
        kind="beyond",
        means="The number violates an absolute bound, which needs no baseline.",
        next_step="mend the code, or change the bound: in the test (bounds=, at_most=, at_least=) or the baseline file",
    ),
    "beyond-threshold": Reason(
        kind="regressed",
        means="The number is worse than the baseline by more than the threshold, which is wider than the noise.",
        next_step=f"see the listed causes; distbench verdict finds the commit with git bisect; {_ACCEPT}",
    ),
    "every-launch": Reason(
        kind="regressed",
        means="Every launch is worse than every launch of the baseline. The values have no ratio, as one is 0 or less.",
        next_step=f"see the causes that the failure lists; {_ACCEPT}",
    ),
    "goal-missed": Reason(
        kind="regressed",
        means="The training did not reach its goal, or needed more steps than the baseline's threshold allows.",
        next_step=f"look at the curve of the loss and of the evaluation in the report; {_ACCEPT}",
    ),
    "no-value": Reason(
        kind="regressed",
        means="Some launches measured no value for a metric that they recorded.",
        next_step="look for a loop that is not entered, or a goal that is not reached",
    ),
    "exact-number": Reason(
        kind="regressed",
        means="A number that is compared exactly differs from the baseline's, under the same software.",
        next_step=_ACCEPT,
    ),
    "unstable-number": Reason(
        kind="regressed",
        means="A number that is compared exactly differs between launches of this run.",
        next_step="find what is random in it, or record it with better='lower' or better='info'",
    ),
    "losses": Reason(
        kind="regressed",
        means="A seeded training computes other losses than the baseline's: the curve diverges.",
        next_step=f"the step at which it diverges tells what to look at; {_ACCEPT}",
    ),
    "training-number": Reason(
        kind="regressed",
        means="A number of a seeded training differs from the baseline's by more than the threshold.",
        next_step=f"compare the curves of the loss in the report; {_ACCEPT}",
    ),
    "ranks-apart": Reason(
        kind="regressed",
        means="The mean over the ranks agrees with the baseline, and the ranks are farther apart than they were.",
        next_step="look for ranks that compute different things: seeds, data shards, gradients that are not averaged",
    ),
    "seed-lost": Reason(
        kind="regressed",
        means="Launches of this run differ at their first losses, and the baseline's did not: it lost its seed.",
        next_step="call torch.manual_seed in the body before the model is made; seed data and samplers, too",
    ),
    "not-repeatable": Reason(
        kind="regressed",
        means="Launches of this run compute other losses than each other, and the baseline's did not.",
        next_step="look for arithmetic whose order is not fixed: atomics, dynamic batches, threads",
    ),
    "communication": Reason(
        kind="changed",
        means="An iteration sends other collectives, or more or fewer bytes. This is an exact comparison, no timing.",
        next_step=f"see the list of what was added and removed; {_ACCEPT}",
    ),
    "names-a-run": Reason(
        kind="volatile",
        means="The workload's definition contains something that changes in every run: a date, a commit, a folder.",
        next_step=f"take it out of the parameters, or write {{launch_dir}} in its place; then {_RECORD}",
    ),
    "not-measured": Reason(
        kind="lost",
        means="The baseline has this number, or a part of it, and this run did not measure it.",
        next_step=(
            "look for a body that returns early, a loop that is not entered or a renamed metric; if it is intended, "
            "--distbench-update removes it from the baseline, and --distbench-prune a whole case"
        ),
    ),
    "nothing-timed": Reason(
        kind="lost",
        means="The timing is 0 s: nothing ran in the loop, or not where this timing is taken.",
        next_step="look at what the loop does on this device",
    ),
    "no-baseline": Reason(
        kind="missing",
        means="No baseline is stored for this case on this platform.",
        next_step="record one with --distbench-update=new and commit it, or compare with a branch: --distbench-against",
    ),
    "slower-machine": Reason(
        kind="machine",
        means="Slower than the baseline, and not slower in interleaved A/B with the baseline commit: not the code.",
        next_step=f"find out what changed on this machine or in its software; {_RECORD} if it is to stay",
    ),
    "numerics-here": Reason(
        kind="machine",
        means="The baseline commit computes the same other digits here: the environment changed them, not the code.",
        next_step=_RECORD,
    ),
    "numerics": Reason(
        kind="drifted",
        means="The training follows the same curve with other digits: another kernel, order of sums or library.",
        next_step=f"nothing if this is intended; else {_RECORD}",
    ),
    "better": Reason(
        kind="improved",
        means="The number is better than the baseline by more than the threshold.",
        next_step="keep the gain with --distbench-update: otherwise losing it again passes",
    ),
    "noise": Reason(
        kind="inconclusive",
        means="The number looks worse, and the noise is too large to say so.",
        next_step=_QUIETER,
    ),
    "more-launches": Reason(
        kind="inconclusive",
        means="The launches so far cannot decide, and the run may make no more of them.",
        next_step="allow more launches: --distbench-launches N:MAX",
    ),
    "machine-busy": Reason(
        kind="inconclusive",
        means="The number is worse, and other processes kept the machine busier than when the baseline was recorded.",
        next_step="end them (distbench doctor names them), or measure again later",
    ),
    "gpu-throttled": Reason(
        kind="inconclusive",
        means="The number is worse, and a GPU was slower than when the baseline was recorded: heat, power, its clock.",
        next_step="look at the GPU with distbench doctor, and measure again when it is cool",
    ),
    "not-confirmed": Reason(
        kind="inconclusive",
        means="The number is suspicious; interleaved A/B with the baseline commit was not possible or not finished.",
        next_step="the sentence says why; give it more time with --distbench-confirm=auto:SECONDS",
    ),
    "ab-disagrees": Reason(
        kind="inconclusive",
        means="Two rounds of interleaved A/B disagree, or the baseline commit differs as much from itself.",
        next_step=_QUIETER,
    ),
    "shared-code": Reason(
        kind="inconclusive",
        means="A/B shows no difference, but code that pytest evaluates for both sides is not the baseline commit's.",
        next_step="look at the named files; --distbench-against runs each side with its own",
    ),
    "one-seed": Reason(
        kind="inconclusive",
        means="One seed's number changed by no more than chance can change it.",
        next_step="measure several seeds: seeds=range(5)",
    ),
    "flat-curve": Reason(
        kind="inconclusive",
        means="The losses hardly change, so a fault of the training would not show in them.",
        next_step="record more digits or more steps, or train something that learns",
    ),
    "impossible": Reason(
        kind="inconclusive",
        means="The number cannot have been measured, or nothing can be computed with it.",
        next_step="look at how the test records it",
    ),
    "other-workload": Reason(
        kind="incomparable",
        means="The baseline is of another workload or of other conditions.",
        next_step=_RECORD,
    ),
    "other-definition": Reason(
        kind="incomparable",
        means="The metric is defined in another way than in the baseline: its unit, direction or how it is measured.",
        next_step=_RECORD,
    ),
    "other-software": Reason(
        kind="incomparable",
        means="An exact number changed, and so did the software that computes it.",
        next_step=_RECORD,
    ),
    "unfit-baseline": Reason(
        kind="incomparable",
        means="The baseline cannot be compared with: too few launches, no value, or values that differ.",
        next_step=_RECORD,
    ),
    "not-possible": Reason(
        kind="incomparable",
        means="This run could not measure or compare the number here; the sentence says why.",
        next_step="see the sentence",
    ),
    "unseeded": Reason(
        kind="unseeded",
        means="Launches of the same training differ at their first losses, so no curve can be compared.",
        next_step="call torch.manual_seed in the body before the model is made; seed data and samplers, too",
    ),
    "low-power": Reason(
        kind="unseen",
        means="Nothing indicates a change, but the comparison would have missed a slowdown of the tolerance.",
        next_step=f"{_QUIETER}, or --distbench-confirm=always",
    ),
    "coarse-digits": Reason(
        kind="unseen",
        means="The losses agree, but they have too few digits or steps to show a fault of the training.",
        next_step="record more digits, or more steps",
    ),
    "within-bound": Reason(
        kind="within",
        means="The number is within its bound, and no baseline is stored to compare it with.",
        next_step="record one with --distbench-update=new",
    ),
    "within-threshold": Reason(
        kind="unchanged", means="The number differs from the baseline by no more than the threshold."
    ),
    "cleared": Reason(
        kind="unchanged",
        means="The timing was suspicious, and interleaved A/B with the baseline commit shows no slowdown.",
    ),
    "equal": Reason(kind="unchanged", means="The number equals the baseline's."),
    "not-judged": Reason(kind="unchanged", means="The number is recorded for information, and not judged."),
    "not-evaluated": Reason(
        kind="inconclusive",
        means="The case failed by another metric, so no more launches were made for this one.",
        next_step="mend the failure first",
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
