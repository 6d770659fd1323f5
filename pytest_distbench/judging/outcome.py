"""Outcome of a case for its test, and the line that says why.

The line has about 100 characters; JUnit and summaries show only it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_distbench.judging.entry import why_not_stored
from pytest_distbench.judging.remarks import find_causes
from pytest_distbench.judging.screening import is_timing
from pytest_distbench.judging.terms import worst
from pytest_distbench.judging.words import change, metric_text, threshold
from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import UNASKED
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseOutcome, CaseResult, Control, Decision, Finding, is_found
from pytest_distbench.records.wanted import NoBaseline
from pytest_distbench.units import counted, format_change, is_size, quantity

LONGEST_LINE = 500  # characters of a launch's reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Strictness:
    options: frozenset[str] = frozenset()  # those given that make more reasons fail, without their dashes
    no_baseline: NoBaseline = "warn"


def conclude(result: CaseResult, strictness: Strictness, *, stood_down: CaseOutcome = "skipped") -> CaseResult:
    """Decide about a case.

    The first of these that holds: a rank failed; all ranks skipped; an injected slowdown was not detected, and the run
    does not accept that; the case was only measured; an update took the numbers; nothing was measured that can be
    judged, as expected if ranks share cores; a metric violates a bound, unless that is expected; an update refused the
    numbers; another verdict fails, unless that is expected; the run does not accept a verdict; there is no baseline,
    and the run does not accept that. If all ranks skipped, they say how the test stands down. The verdicts of an
    advisory case are decided likewise, and fail nothing, or only those that are no timing.
    """
    outcome, decision, verdicts = _decide(result, strictness, stood_down)
    advisory = f" (advisory: {result.advisory})" if outcome == "advisory" else ""
    found = replace(result, outcome=outcome, decision=decision)
    causes = find_causes(result) if decision in ("failed", "bound", "unaccepted") else []
    return replace(found, headline=_headline(found, verdicts) + advisory, causes=causes)


def _decide(
    result: CaseResult, strictness: Strictness, stood_down: CaseOutcome
) -> tuple[CaseOutcome, Decision, Sequence[Finding]]:
    last = result.launches[-1]
    if last.outcome != "passed":
        return "failed" if last.outcome == "failed" else stood_down, "launch", ()
    judged = [v for v in result.verdicts if v.is_judged]
    is_lost = result.control is not None and not result.control.why_not and not result.control.found
    if is_lost and "distbench-strict" in strictness.options:
        return "failed", "not_found", ()
    is_stored = result.update in ("new", "changed", "rewritten", "kept")
    if is_stored or (result.reference.kind == "nothing" and not result.verdicts):
        return "passed", "", ()
    if not judged:
        is_meant = OVERSUBSCRIBED in result.case.conditions.around
        return ("passed", "", ()) if is_meant else ("failed", "nothing_judged", ())
    failing = [v for v in judged if v.is_failure]
    expected: CaseOutcome = "xfailed" if result.xfail_perf else _unwanted(result, failing)
    if any(v.code == "bound" for v in failing):
        return expected, "bound", failing
    if result.update == "refused":
        return "failed", "refused", ()
    if failing:
        return expected, "failed", failing
    if unaccepted := [v for v in judged if v.row.fails_under in strictness.options]:
        return _unwanted(result, unaccepted), "unaccepted", unaccepted
    stored = (v for v in judged if v.kind != "new" and (v.baseline is not None or not v.is_undecided))
    if not any(stored) and strictness.no_baseline != "warn":
        return "skipped" if strictness.no_baseline == "skip" else _unwanted(result, judged), "new", judged
    return "passed", "", ()


def _unwanted(result: CaseResult, verdicts: Sequence[Finding]) -> CaseOutcome:
    is_exact = any(v.kind == "missing" or not METRIC_KINDS[v.better].scatters for v in verdicts)
    return "failed" if not result.advisory or (result.is_advisory_of_timings and is_exact) else "advisory"


def _headline(result: CaseResult, verdicts: Sequence[Finding]) -> str:
    launch = result.launches[-1]
    match result.decision:
        case "launch" if launch.outcome == "skipped":
            return launch.reason or "all ranks skipped"
        case "launch":
            return launch_headline(launch)
        case "nothing_judged":
            shown = ", ".join(v.metric for v in result.verdicts if v.name not in UNASKED) or "nothing"
            if any(m.is_judged and m.name not in UNASKED for m in launch.measurements):
                return f"nothing that was measured is among the metrics= of the test's marker; there are {shown}"
            return (
                f"nothing was measured that can be judged: the body recorded {shown}; give what matters to rank.record "
                "with better='lower', 'higher' or 'exact', or use rank.timed. A body that only asserts: distbench.check"
            )
        case "refused":
            return f"not stored: {why_not_stored(result.launches, result.verdicts)}"
        case "failed" | "bound" if result.outcome == "xfailed":
            return result.xfail_perf
        case "failed" | "bound":
            against = f" against {result.reference.name}" if result.reference.name else ""
            changed = next((v.reason for v in result.verdicts if v.code == "communication"), "")
            failed = [v for v in result.verdicts if v.is_failure and v.code != "communication"]
            if not failed:
                return f"communication changed{against}: {changed}"
            return _movement(result, failed, against) + ("; communication changed" if changed else "")
        case "unaccepted":
            first = verdicts[0]
            more = f" (and {len(verdicts) - 1} more)" if len(verdicts) > 1 else ""
            answer = first.code if first.kind == "unchanged" else first.kind
            return f"{metric_text(first)}: {answer}: {first.reason or change(first)}{more}; --{first.row.fails_under}"
        case "new" if result.reference.kind == "paired":
            return f"{result.verdicts[0].reason or 'nothing to compare with'}: measured, not judged"
        case "new":
            return f"no baseline for {result.environment.platform}"
        case "not_found":
            control = result.control
            assert control is not None
            timing = representative(control)
            seen = "nothing" if timing.ratio is None else format_change(timing.ratio)
            injected = f"injected {format_change(injected_ratio(control, timing))}, measured {seen}"
            where = "by A/B" if control.step == "turns" else "against the baseline"
            return f"a slowdown was {detection(control)}: {metric_text(timing)} {injected} {where}"
        case _:
            return ""


def launch_headline(launch: LaunchRecord) -> str:
    """One line: which launch, on how many ranks, and what happened.

    A command, and an elastic job whose training completed, have no ranks to name.
    """
    number = f"launch {launch.index + 1}"
    where = number if launch.command or not launch.fates else f"{number} on {counted(len(launch.fates), 'rank')}"
    return f"{where}: {(launch.reason.splitlines() or ['failed'])[0][:LONGEST_LINE]}"


def _movement(result: CaseResult, failed: Sequence[Finding], against: str) -> str:
    first = worst(failed)
    of = f", {len(failed)} of {len(result.verdicts)} metrics" if len(failed) > 1 else ""
    if "message_bytes" in first.at:
        same = [v for v in result.verdicts if v.name == first.name]
        of = f", {sum(v.is_failure for v in same)} of {len(same)} sizes"
    name, kind = metric_text(first), METRIC_KINDS[first.better]
    if first.code == "bound":
        return f"{name}: {first.reason}{of}"
    if not first.row.may_be_confirmed:
        return f"{name}{against}: {first.kind}: {first.reason or change(first)}{of}"
    if first.current is None:
        return f"{name}{against}: no value ({first.reason}), baseline {quantity(first.baseline, first.unit)}{of}"
    if kind.is_of_training and first.reason:
        return f"{name}{against}: {first.reason.partition(';')[0]}{of}"
    if kind.is_exact:
        now, then = quantity(first.current, first.unit), quantity(first.baseline, first.unit)
        return f"{name}{against}: {now}, baseline {then} (exact){of}"
    most = threshold(first)
    allowed = f" (threshold {most})" if most else f": {first.reason}"
    return f"{name} {change(first) or first.reason}{against}{allowed}{of}"


def representative(control: Control) -> Finding:
    """The timing that represents a control: one that detected the slowdown, and of those the one that changed most."""

    def worse_by(verdict: Finding) -> float:
        by = math.log(verdict.ratio) if verdict.ratio and verdict.ratio > 0 else 0.0
        return METRIC_KINDS[verdict.better].sign * by

    return max(control.verdicts, key=lambda v: (is_found(v), worse_by(v)))


def injected_ratio(control: Control, verdict: Finding) -> float:
    """Expected ratio of the number to its value without the delay: below 1 for a rate."""
    return (1 + control.share) ** METRIC_KINDS[verdict.better].sign


def detection(control: Control) -> str:
    every = f" in {len(control.found)} of {len(control.verdicts)}" if len(control.verdicts) > 1 else ""
    match control.step:
        case "bound":
            return f"detected{every}: beyond its bound"
        case "turns" if control.found:
            return f"detected{every}" if control.has_baseline else f"detected{every}, by A/B alone: no baseline"
        case "turns":
            return "not detected: A/B did not fail" + ("" if control.has_baseline else "; no baseline")
        case "stored":
            return (
                f"detected{every}, against the baseline alone" if control.found else "not detected, and A/B was not run"
            )
        case _:
            return "not detected: not suspicious"


def state_of(result: CaseResult) -> str:
    """Category in which a case is counted."""
    if result.outcome != "passed":
        return result.outcome
    if result.is_written:
        return "updated"
    judged = [v for v in result.verdicts if v.is_judged]
    kinds = {v.kind for v in judged}
    if not judged:
        return "measured"
    if "inconclusive" in kinds:
        return "inconclusive"
    is_bounded = any(v.code == "within-bound" or any(not b.is_default for b in v.bounds) for v in result.verdicts)
    if is_bounded and all(v.baseline is None for v in judged):
        return "bounds"
    return "new" if "new" in kinds else "environment" if "environment" in kinds else "passed"


COMMUNICATION_CHANGED = "communication changed"


def why_failed(result: CaseResult) -> str:
    """Reason in two or three words, for a count: ``communication changed``."""
    if (last := result.launches[-1]).outcome == "failed":
        is_of_rank = not last.fates or any(fate.outcome == "failed" for fate in last.fates)
        return "a rank failed" if is_of_rank else "a launch failed"
    failed = [v for v in result.verdicts if v.is_failure]
    if not failed:
        return result.headline.rpartition("; --")[0] or result.headline or "not accepted"
    return COMMUNICATION_CHANGED if any(v.code == "communication" for v in failed) else why_number(worst(failed))


def why_number(first: Finding) -> str:
    kind = METRIC_KINDS[first.better]
    if first.code == "bound":
        return "beyond a bound"
    if first.kind == "missing":
        return "numbers missing"
    if kind.is_of_training:
        return "losses changed" if kind.is_curve else "trains otherwise"
    if first.kind == "changed":
        return f"{first.name} changed"
    return "more memory" if is_size(first.unit) else "slower" if is_timing(first, first.unit) else f"{first.name} worse"
