"""The eight verdicts and their reasons: each reason has a code, and is one row here.

A verdict says whether a number is worse; its code says why, and all that follows depends on the code. ``distbench
explain CODE`` prints the row. A row that a test module or a conftest adds counts as ours do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_distbench.extensions import Table

VerdictName = Literal[
    "regressed", "changed", "missing", "not evaluated", "inconclusive", "new", "environment", "improved", "unchanged",
    "cause", "remark",
]  # fmt: skip
"""Verdicts, and the two kinds of finding that are none: a cause may explain a failure, a remark is about a run."""

ReasonCode = str  # name of a reason, a key of :data:`REASONS` or of :data:`REMARKS`

Severity = Literal["plain", "doubt", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason for a verdict, and what follows from it; a row of the tables of reasons.

    Attributes:
        verdict: the verdict; for a finding that is none, ``cause`` or ``remark``.
        means: what happened, in a sentence.
        next_step: what to do, or "".
        printed: regular expression of the lines that a run prints for it, used by ``distbench explain``.
        mark: one character before its row, so that nothing depends on colour.
        fails: whether the test fails under the default policy.
        fails_under: option under which the test fails, without its dashes, or "".
        is_answer: whether it is known if the number is worse; False for *inconclusive*, for instance.
        updates: whether ``--distbench-update=changed`` writes the number.
        is_reported: whether the end of a run prints the finding's sentence.
        warns: whether GitHub gets a warning if nothing failed.
        is_quiet: whether tables that list what changed only count such findings.
        may_be_confirmed: whether interleaved A/B with the baseline commit may overrule it, for a timing or a training.
        is_comparable: whether the number was compared; else there was nothing that it could be compared with.
    """

    verdict: VerdictName
    means: str
    next_step: str = ""
    printed: str = ""
    mark: str
    fails: bool = False
    fails_under: str = ""
    is_answer: bool = False
    updates: bool = False
    is_reported: bool = False
    warns: bool = False
    is_quiet: bool = False
    may_be_confirmed: bool = False
    is_comparable: bool = True

    @property
    def severity(self) -> Severity:
        """Severity of a line that prints it: whether something failed, or is undecided."""
        if self.fails:
            return "failure"
        return "doubt" if self.is_reported and not self.is_answer else "plain"


VERDICTS: dict[VerdictName, Reason] = {
    "regressed": Reason(
        verdict="regressed",
        means="The number is worse than the baseline by more than the threshold, or violates its bound.",
        next_step="read the likely causes that the failure lists, then distbench explain with the reason's code",
        printed=r"^!.*[+-][\d.,]+ %",
        mark="!",
        fails=True,
        is_answer=True,
        updates=True,
        may_be_confirmed=True,
    ),
    "changed": Reason(
        verdict="changed",
        means="Something that is compared exactly differs: communication, losses, an exact number or the parameters.",
        next_step="read what was added and removed; if it is intended, record it with --distbench-update",
        printed=r"^!.*\bexact\b",
        mark="!",
        fails=True,
        is_answer=True,
        updates=True,
        may_be_confirmed=True,
    ),
    "missing": Reason(
        verdict="missing",
        means="The baseline has a metric, or a part of one, that this run did not measure.",
        next_step="find out why it is not measured; if it is intended, --distbench-update removes it from the baseline",
        mark="!",
        fails=True,
        is_answer=True,
        updates=True,
    ),
    "not evaluated": Reason(
        verdict="not evaluated",
        means="The number was not judged, as the case already failed or the host was busy.",
        next_step="fix the failure first, or wait for the other run; the next run judges the number",
        mark=" ",
    ),
    "inconclusive": Reason(
        verdict="inconclusive",
        means="There is not enough evidence: noise, machine load or a baseline that does not fit could explain it.",
        next_step="distbench explain with the reason's code; the test passes, and fails with --distbench-strict",
        printed=r"^[?x]\s",
        mark="?",
        fails_under="distbench-strict",
        is_reported=True,
        warns=True,
    ),
    "new": Reason(
        verdict="new",
        means="No baseline is stored for this case on this platform, so the number was measured and not judged.",
        next_step="record one with --distbench-update=new and commit it, or compare with a branch: --distbench-against",
        printed=r"^N\s|no baseline|measured, not judged",
        mark="N",
        updates=True,
        warns=True,
    ),
    "environment": Reason(
        verdict="environment",
        means="The machine or its software changed the number; the code did not.",
        next_step="find out what changed on the machine; if it stays, record new baselines with --distbench-update",
        printed=r"^~\s",
        mark="~",
        is_answer=True,
        updates=True,
        is_reported=True,
        warns=True,
    ),
    "improved": Reason(
        verdict="improved",
        means="The number is better than the baseline by more than the threshold.",
        next_step="record it with --distbench-update: else a later run can lose the gain and still pass",
        printed=r"^\+\s",
        mark="+",
        fails_under="distbench-fail-on-improvement",
        is_answer=True,
        updates=True,
    ),
    "unchanged": Reason(
        verdict="unchanged",
        means="The number differs from the baseline by no more than the threshold, or is within its bound.",
        next_step="nothing to do",
        mark=" ",
        is_answer=True,
        is_quiet=True,
    ),
}
"""Verdicts by name, the most severe first, as in reports. A reason's consequences are its verdict's unless its row says
otherwise. There are eight; *not evaluated* is none, and stands in place of one."""


def because(verdict: VerdictName, means: str, next_step: str = "", printed: str = "", **consequences: Any) -> Reason:
    """Make a reason for a verdict; only consequences that differ from the verdict's row are given."""
    return replace(VERDICTS[verdict], means=means, next_step=next_step, printed=printed, **consequences)


def severity_order(code: ReasonCode) -> tuple[int, int]:
    """Sort key of a reason: the most severe verdict first, and its reasons in the order of their table."""
    return list(VERDICTS).index(REASONS[code].verdict), list(REASONS).index(code)


ACCEPT = "if the change is intended, record it with --distbench-update and commit baselines/"
QUIETER = (
    "end other processes (distbench doctor names them), make more launches (--distbench-launches 5), or time a longer "
    "loop"
)
RECORD = "record the baseline again with --distbench-update"

_OURS: dict[ReasonCode, Reason] = {
    "bound": because(
        "regressed",
        means="The number violates an absolute bound. No update changes a bound.",
        next_step="fix the code, or change the bound: in the test (bounds=, at_most=, at_least=) or the baseline file",
        printed=r", bound: at |(above|below) (its|the) bound|violates (its|a) bound",
        updates=False,
        may_be_confirmed=False,
    ),
    "beyond-threshold": because(
        "regressed",
        means="Worse than the baseline by more than the threshold, which allows for the noise.",
        next_step=(
            f"read the likely causes in the failure; git bisect run distbench verdict TEST finds the commit; {ACCEPT}"
        ),
        printed=(
            r"[+-][\d.,]+ % .*\(threshold|over \d+ pairs; A/A noise [^;:]*$|so the comparison with the stored"
            r"|needs the most memory|the slowdown is larger"
        ),
    ),
    "all-launches-worse": because(
        "regressed",
        means="Each launch is worse than all of the baseline; a value of 0 or less gives no ratio.",
        next_step=f"compare the launches in the HTML report (--distbench-report FILE); {ACCEPT}",
        printed=r" -> .* in every launch",
    ),
    "goal-missed": because(
        "regressed",
        means="The training did not reach its goal, or needed more steps than the threshold allows.",
        next_step=f"compare the curves in the HTML report (--distbench-report FILE); {ACCEPT}",
        printed=r"goal missed in",
    ),
    "no-value": because(
        "regressed",
        means="Some launches recorded the metric without a value.",
        next_step="check why nothing was computed: a loop that is not entered, a goal that is not reached",
        printed=r"no value in \d+ of \d+ (launch|seed)",
    ),
    "exact-number": because(
        "changed",
        means="A number that must equal the baseline's differs, under the same software versions.",
        next_step=f"look for the change in the code that computes it; {ACCEPT}",
        printed=r"\bexact: |\(exact\)|^!.* % +exact\b",
    ),
    "unstable-number": because(
        "changed",
        means="A number that must be equal differs between launches: something is random.",
        next_step="seed it, or record it with better='lower' or 'info'",
        printed=r"differs between launches of this run",
    ),
    "losses": because(
        "changed",
        means="The loss curve of a seeded training diverges from the baseline's.",
        next_step=f"check the step at which it diverges, and the likely causes; {ACCEPT}",
        printed=r"diverges at (step|value)",
    ),
    "training-number": because(
        "changed",
        means="A result of a seeded training, such as its last loss, differs too much.",
        next_step=f"find where it begins in the HTML report (--distbench-report FILE); {ACCEPT}",
        printed=r"one seed changed by [^;]*$|exact (under the same|where the losses)|went (up|down) (over|by)",
    ),
    "weights": because(
        "changed",
        means="The training ends in other weights, or saves others, than rounding explains.",
        next_step=(
            "look at what happens to the named tensor: the optimizer's options, an average, what is saved and how; "
            f"{ACCEPT}"
        ),
        printed=(
            r"the training is the same, |is not saved any more|times the baseline's|or with other "
            r"signs|its change since the first update|: it follows from the diverged|: rounding accounts for"
        ),
    ),
    "options": because(
        "changed",
        means="An optimizer or scheduler has other options than those of the baseline.",
        next_step=f"see where the option is set; {ACCEPT}",
        printed=r"^\w+: \w+ .* -> ",
        may_be_confirmed=False,
    ),
    "ranks-apart": because(
        "changed",
        means="The mean losses are equal, but those of single ranks are further apart.",
        next_step=f"look for what differs by rank: seeds, data shards, gradients that are not averaged; {ACCEPT}",
        printed=r"the single ranks do not",
    ),
    "seed-lost": because(
        "changed",
        means="Launches begin with different losses, and the baseline's did not.",
        next_step="restore the seed call that was removed: torch.manual_seed before the model, data, samplers",
        printed=r"is no longer seeded",
    ),
    "determinism-lost": because(
        "changed",
        means="Launches begin alike and then compute different losses; the baseline's stayed equal.",
        next_step="look for a race, unseeded dropout or data, or sums without a fixed order (atomics, threads)",
        printed=r"does not reproduce its own losses",
    ),
    "communication": because(
        "changed",
        means="An iteration sends other collectives, or more or fewer bytes. The check is exact.",
        next_step=(f"read which were added and removed; usual causes: no_sync, bucket_cap_mb, an extra call; {ACCEPT}"),
        printed=(
            r"(was|were) (added|removed)|(collectives|sent per rank) became|fingerprint changed"
            r"|communication (per step )?changed|exact check: noise has no part"
        ),
        may_be_confirmed=False,
    ),
    "run-specific-workload": because(
        "changed",
        means="The parameters hold a date, a commit or a folder of this run: no baseline can fit.",
        next_step=f"remove it from params=, args= or env=, or write {{launch_dir}} for a folder; then {RECORD}",
        printed=r"that changes with every run",
        is_answer=False,
        is_reported=True,
        may_be_confirmed=False,
    ),
    "not-measured": because(
        "missing",
        means="The baseline has it, and this run did not measure it, or for fewer steps or ranks.",
        next_step=(
            "look for an early return, a loop that is not entered or a renamed metric; if it was removed on purpose, "
            "--distbench-update drops it from the baseline, and --distbench-prune a whole test"
        ),
        printed=(
            r"baseline has it, and this run did not|not measured by this test|is not measured|the candidate does not"
            r"|; this run has none|not the number that the base judges"
            r"|recorded (as|by) |(series|launch); the baseline has"
        ),
    ),
    "nothing-timed": because(
        "missing",
        means="The timing is 0 s: nothing ran in the loop, or not where it is timed.",
        next_step="check that the loop works; on a GPU the current stream has to wait for others",
        printed=r"the timing is 0 s",
    ),
    "not-evaluated": because(
        "not evaluated",
        means="The case already failed by an exact check, so no more launches were made to judge this number.",
        next_step="fix the failure first; the next run judges the number",
        printed=r"not evaluated: the case already failed",
    ),
    "host-busy": because(
        "not evaluated",
        means="The time of a whole script, which the test does not name, is only judged while nothing else measures.",
        next_step="nothing to do; to wait for the other run instead, name wall_time in the test: metrics=, tolerance=",
        printed=r"not evaluated: (another run|host busy)",
    ),
    "noise": because(
        "inconclusive",
        means="The number looks worse, but the noise between launches is too large to say so.",
        next_step=QUIETER,
        printed=r"too noisy[ ;]|not clear after|not clearly ordered|above .* in \d+ of \d+ launches",
    ),
    "launches-used-up": because(
        "inconclusive",
        means="All launches were made, and the noise still hides whether the number is worse.",
        next_step="end other processes (distbench doctor), or allow more launches: --distbench-launches=5:20",
        printed=r"more (launches|pairs) are needed",
    ),
    "machine-busy": because(
        "inconclusive",
        means="Worse, but other processes used more of the machine than at the baseline.",
        next_step="end them (distbench doctor names them), or measure again later",
        printed=r"other processes used|ranks waited for CPUs|mostly in its slowest iterations|which explains",
    ),
    "gpu-throttled": because(
        "inconclusive",
        means="Worse, but a GPU was slower than at the baseline: heat, power, its clock, other users.",
        next_step="look at the GPU (distbench doctor, nvidia-smi -q -d PERFORMANCE); measure again at full clock",
        printed=r"slowed down by|power limit is|SM clock is set|was shared with|ran through MPS",
    ),
    "not-confirmed": because(
        "inconclusive",
        means="Suspicious, and A/B left it open: its pairs used all of the time, or gave no comparable number.",
        next_step="give it more: --distbench-confirm=auto:300, or compare by --distbench-against REF",
        printed=r"not confirmed|gave no comparable number|time .*(was used up|was up|there was)",
    ),
    "ab-disagrees": because(
        "inconclusive",
        means="A/B is unclear: two sets of processes disagree, or the same code differs as much (A/A).",
        next_step=QUIETER,
        printed=r"this machine is too noisy|not in another one",
    ),
    "shared-code": because(
        "inconclusive",
        means="Slower than the baseline; A/B shows no slowdown, but both sides used today's test files.",
        next_step=(
            "restore the named files (conftest.py, the test) as in the baseline commit and run again: if the slowdown "
            f"is gone, they caused it, else the machine did; {ACCEPT}"
        ),
        printed=r"either that code or the machine",
    ),
    "one-seed": because(
        "inconclusive",
        means="One seed's number changed, but by no more than chance can change it.",
        next_step="measure several seeds: distbench.run(..., seeds=range(5))",
        printed=r"that may be chance",
    ),
    "flat-curve": because(
        "inconclusive",
        means="The losses hardly change, so a broken optimizer step would not show in them.",
        next_step=f"train on data that can be learned, with a larger rate, more steps or more digits; then {RECORD}",
        printed=r"the losses do not change",
    ),
    "not-deterministic": because(
        "inconclusive",
        means="Launches of one seeded training compute different losses: no curve to compare.",
        next_step="call torch.use_deterministic_algorithms(True), or judge the training by other numbers",
        printed=r"training does not repeat",
    ),
    "invalid-value": because(
        "inconclusive",
        means="The number cannot have been measured: it is 0 or negative, or better than possible.",
        next_step="check its unit, its formula, and whether the timed work has ended",
        printed=r"is no time that anything takes|is no size|more than 100 % efficiency",
    ),
    "other-workload": because(
        "inconclusive",
        means="The baseline was recorded with other parameters or under other conditions.",
        next_step=f"the test's line names what differs: if that is intended, {RECORD}; else set it back",
        printed=r"the case's parameters changed|under other conditions",
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "other-definition": because(
        "inconclusive",
        means="The metric has another unit, direction or way of measuring.",
        next_step=f"if that is intended, {RECORD}; else record the metric as before",
        printed=r"\b(kind|unit|mode) was .*, now|is it the same number|uses other seeds",
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "other-software": because(
        "inconclusive",
        means=("A number that must equal the baseline's differs, and so do the software versions."),
        next_step=(
            f"measure with the baseline's versions: equal again, and they did it; to accept the new number, {RECORD}"
        ),
        printed=r"software versions",
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "unusable-baseline": because(
        "inconclusive",
        means="The baseline itself cannot be used: too few launches, no value, or launches that differ.",
        next_step=RECORD,
        printed=(
            r"the baseline has (one launch|no value)|so it is not exact|no value in .* pairs|baseline missed its goal"
            r"|record the baseline again|baseline's curve has|a launch of the baseline took"
        ),
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "unavailable": because(
        "inconclusive",
        means="The number could not be measured or compared here.",
        next_step="remove the obstacle that the sentence names: memory, torch version, an option",
        printed=(
            r"left out by --|not enough memory for a message|not all sizes were measured|goal was missed, so"
            r"|did not happen in this run|too large to compute|not recorded by"
        ),
        mark="x",
        updates=True,
        is_comparable=False,
    ),
    "unseeded": because(
        "inconclusive",
        means="Launches of one training begin with different losses: no curve to compare.",
        next_step=(
            "call torch.manual_seed in the function that the ranks run, before the model is made; seed data and "
            f"samplers too; then {RECORD}"
        ),
        printed=r"from the first value on|seeded, this run's are not|likely a race",
        mark="x",
    ),
    "no-baseline": because(
        "new",
        means="No baseline is stored for this case on this platform.",
        next_step="record one with --distbench-update=new and commit it, or compare with a branch: --distbench-against",
        printed=r"no baseline|no communication fingerprint of|measured, not judged|baseline commit does not record",
    ),
    "slower-machine": because(
        "environment",
        means="The baseline commit is as slow here now (A/B): the machine is the cause.",
        next_step=(
            f"find out what changed on it (distbench doctor, driver, other jobs); if it stays like this, {RECORD}"
        ),
        printed=r"the machine or its software is slower",
    ),
    "numerics-environment": because(
        "environment",
        means="The last digits of the losses differ, and the baseline commit computes the same here.",
        next_step=f"to compare with the new digits, {RECORD}",
        printed=r"the environment changed the digits",
    ),
    "better": because(
        "improved",
        means="The number is better than the baseline by more than the threshold.",
        next_step="record it with --distbench-update: else a later run can lose the gain and still pass",
    ),
    "numerics": because(
        "unchanged",
        means="The same curve with other last digits: another kernel, order of sums or library.",
        next_step=f"nothing if that is expected; to compare with the new digits, {RECORD}",
        printed=r"numerics changed|the code changed them|shows only after the recorded curve",
        mark="~",
        updates=True,
        is_reported=True,
        warns=True,
        is_quiet=False,
    ),
    "low-power": because(
        "unchanged",
        means="No slowdown shows, but one as large as the tolerance could be missed in the noise.",
        next_step=f"{QUIETER}; --distbench-confirm=always measures every case by interleaved A/B",
        printed=r"would not have shown|could miss|minimum detectable slowdown \+",
        fails_under="distbench-strict",
        is_answer=False,
    ),
    "too-few-digits": because(
        "unchanged",
        means="The losses agree, but have too few digits or steps to show a fault.",
        next_step="record the loss unrounded (loss.item()), or more steps; in the baseline too: --distbench-update",
        printed=r"losses differ, in steps of",
        fails_under="distbench-strict",
        is_answer=False,
    ),
    "within-bound": because(
        "unchanged",
        means="Within its bound, and no baseline is stored.",
        next_step="record one with --distbench-update=new",
        updates=True,
    ),
    "within-threshold": because(
        "unchanged",
        means="The number differs from the baseline by no more than the threshold.",
        next_step="nothing to do",
        printed=r"within (its|their|the)? ?(limits?|thresholds?)|^differs by up to|interval of evaluations",
    ),
    "cleared": because(
        "unchanged",
        means="The timing was suspicious, and A/B showed no slowdown above the threshold.",
        next_step="nothing to do",
    ),
    "equal": because("unchanged", means="The number equals the baseline's.", next_step="nothing to do"),
    "not-judged": because(
        "unchanged",
        means="The number is recorded for information only.",
        next_step="nothing to do; to judge it, record it with better='lower', 'higher' or 'exact'",
        printed=r"recorded, not judged",
    ),
}
REASONS: Table[ReasonCode, Reason] = Table("reasons", _OURS)


_CAUSE = Reason(verdict="cause", means="", mark="")
_REMARK = Reason(verdict="remark", means="", mark="")
_REPORTED = replace(_REMARK, is_reported=True)

REMARKS: dict[ReasonCode, Reason] = {
    **dict.fromkeys(("ok", "note"), _REMARK),  # about this machine
    "warn": _REPORTED,
    "fail": replace(_REMARK, fails=True),
    "changed-communication": _CAUSE,
    "slower-sizes": _CAUSE,
    "dearer-calls": _CAUSE,
    "slower-links": _CAUSE,
    "longer-phase": _CAUSE,
    "added-time": _CAUSE,
    "late-rank": _CAUSE,
    "gpu-clocks": _CAUSE,
    "free-algorithm": _CAUSE,
    "detected": _REMARK,
    "undetected": _REPORTED,
    "sensitivity": _REMARK,
    "low-sensitivity": _REPORTED,
    "not-injected": replace(_REPORTED, mark="?"),
    "not-delayed": replace(_REPORTED, mark="?"),
    "out-of-reach": replace(_REPORTED, mark="?"),
    "unconfirmed": replace(_REPORTED, mark="?"),
    "contradiction": replace(_REPORTED, mark="?"),
    "unlinked": replace(_REPORTED, mark="?"),
    "not-evaluated": _REMARK,
    "all-moved": _REMARK,
    "flaky": _REMARK,
    "needless-xfail": _REMARK,
    "software": _REMARK,
    "not-recorded": _REMARK,
    "judged-by-base": _REMARK,
    "unseen": _REMARK,
    "learning": _REMARK,
    "learning-known": _REMARK,
}
"""Findings that are no verdicts: likely causes of a failure, and remarks about a run; their sentences say all."""


def reason(code: ReasonCode) -> Reason:
    """The row of a reason code, such as ``beyond-threshold``, in the tables of reasons and remarks."""
    try:
        return REASONS.get(code) or REMARKS[code]
    except KeyError:
        raise ValueError(
            f"unknown reason {code!r}; wanted one of {', '.join(REASONS)}, or one of yours, whose module has to be "
            "imported first: -p MODULE"
        ) from None
