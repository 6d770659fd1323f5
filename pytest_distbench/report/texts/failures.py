"""Texts of failed tests. The first line tells the story in about 100 characters; JUnit and summaries show only it.

One text per kind of failure, whatever the case was compared with: a stored baseline, or launches beside it. What
decided is in the conclusion. Of a failed launch the culprit comes first, then what each rank left behind, and how to
run it again.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.judging.causes import cause_lines
from pytest_distbench.judging.entry import why_not_stored
from pytest_distbench.judging.terms import Conclusion, software_changes, worst
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord, RankFate
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.texts import change, escape, metric_text, quantity, threshold
from pytest_distbench.report.texts.remarks import not_found_headline, not_found_text
from pytest_distbench.report.texts.verdicts import case_table

_FEW_LINES = 30
_FEW_LOGS = 4
_STACK_LINES = 90
_LONGEST_LINE = 500
_LONGEST_TEXT = 8000


def launch_text(result: CaseResult, *, rerun_command: str) -> str:
    """Explain a failed launch: the culprit first, what GPUs and launcher say, equal fates merged, logs, the command."""
    launch = result.launches[-1]
    remarks = [escape(remark) for remark in launch.remarks]
    parts = [escape(launch_headline(launch)), *_further_lines(launch), *remarks, ""]
    groups: dict[tuple[str, str], list[RankFate]] = {}
    for fate in launch.fates:
        groups.setdefault((_title_of(fate), _body_of(fate)), []).append(fate)
    for (title, body), fates in groups.items():
        numbers = ", ".join(_name(f.rank, launch.hosts) for f in sorted(fates, key=lambda f: f.rank))
        who = escape(launch.command[:_LONGEST_LINE]) or f"rank{'s' * (len(fates) > 1)} {numbers}"
        parts += [f"--- {who}: {title}", *([body, ""] if body else [])]
        for fate in fates[:_FEW_LOGS]:
            parts += _log_of(fate, launch)
    parts.append(f"logs:    {launch.logs}/rank*.log")
    parts.append(f"re-run:  {rerun_command}")
    if not launch.command and not result.case.conditions.engine and _may_attach(result):
        first = launch.fates[0].rank if launch.fates else 0
        parts.append(f"debug:   {rerun_command} --distbench-attach {first}")
    return "\n".join(parts)


def launch_headline(launch: LaunchRecord) -> str:
    """One line: which launch, on how many ranks, and what happened.

    Of a command, and of an elastic job whose training came to its end, there is no rank to tell of.
    """
    ranks = len(launch.fates)
    if launch.command or not ranks:
        return f"launch {launch.index + 1}: {_first_line(launch)}"
    return f"launch {launch.index + 1} on {ranks} rank{'s' * (ranks != 1)}: {_first_line(launch)}"


def _name(rank: int, hosts: Sequence[str]) -> str:
    return f"{rank} ({hosts[rank]})" if hosts else str(rank)


def _may_attach(result: CaseResult) -> bool:
    """Whether a rank can be given the terminal, which there is on this host alone."""
    launcher = LAUNCHERS.get(result.case.conditions.launcher)
    return launcher is None or launcher.hosts == "one"


def remark_lines(launches: Sequence[LaunchRecord]) -> list[str]:
    """What launches that passed have to say, each line once, with the number of launches that said it."""
    counts = Counter(remark for launch in launches for remark in dict.fromkeys(launch.remarks))
    return [f"{remark} ({count} of {len(launches)} launches)" for remark, count in counts.items()]


def _first_line(launch: LaunchRecord) -> str:
    return (launch.reason.splitlines() or ["failed"])[0][:_LONGEST_LINE]


def _title_of(fate: RankFate) -> str:
    words = [f"{fate.how}, in phase {fate.phase}"]
    if fate.waits_at:
        words.append(f"at {fate.waits_at}")
    if fate.collective_number is not None:
        words.append(f"last collective: {fate.collective} (number {fate.collective_number})")
    if fate.is_victim:
        words.append("followed from another rank's failure")
    return "; ".join(words)


def _body_of(fate: RankFate) -> str:
    if fate.error is not None:
        return _shorten(fate.error.traceback.rstrip())
    if fate.is_victim:  # the one that failed is shown
        return ""
    return "\n".join(f"    {line}" for line in fate.stacks.splitlines()[:_STACK_LINES])


def _log_of(fate: RankFate, launch: LaunchRecord) -> list[str]:
    lines = fate.log_tail.strip().splitlines()[-_FEW_LINES:]
    if not lines:
        return []
    return [
        f"    end of {LaunchFiles(Path(launch.logs)).log(fate.rank)}:",
        *(f"    | {line[:_LONGEST_LINE]}" for line in lines),
        "",
    ]


def _further_lines(launch: LaunchRecord) -> list[str]:
    lines = launch.reason.splitlines()[1:]
    return [f"    | {line[:_LONGEST_LINE]}" for line in lines[-_FEW_LINES:]]


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out, the log has them ...\n{text[-half:]}"


_MOST_REASONS = 8


def regression_text(result: CaseResult, *, command: str, recorded_at: str = "") -> str:
    failed = [v for v in result.verdicts if v.is_failure and v.code != "communication"]
    return _text(result, regression_headline(result), failed, command=command, causes=True, recorded_at=recorded_at)


def unaccepted_text(result: CaseResult, unaccepted: Sequence[Finding], *, command: str, recorded_at: str = "") -> str:
    headline = unaccepted_headline(unaccepted)
    return _text(result, headline, unaccepted, command=command, causes=False, recorded_at=recorded_at)


def _text(
    result: CaseResult, headline: str, verdicts: Sequence[Finding], *, command: str, causes: bool, recorded_at: str
) -> str:
    reasons = [escape(f"{metric_text(v)}: {v.reason}") for v in verdicts if v.reason]
    reasons = [reason for reason in reasons if reason != escape(headline)]
    has_rows = any(v.code not in ("communication", "not-evaluated") and not v.row.is_quiet for v in result.verdicts)
    return "\n".join(
        [
            escape(headline),
            "",
            *([*(line.text for line in case_table(result, show_all=False)), ""] if has_rows else []),
            *reasons[:_MOST_REASONS],
            *(cause_lines(result) if causes else []),
            *_not_timed(result),
            *comparison_lines(result, recorded_at=recorded_at),
            *_next_steps(result, command),
        ]
    )


def _not_timed(result: CaseResult) -> list[str]:
    """What noise has no part in, and what was not judged for it."""
    failed = [v for v in result.verdicts if v.is_failure]
    left = [v for v in result.verdicts if v.code == "not-evaluated"]
    exact = ["exact check: noise has no part in it"] if failed and not any(v.is_noisy for v in failed) else []
    numbers = [
        f"{metric_text(v)} ({quantity(v.current, v.unit)}, baseline {quantity(v.baseline, v.unit)})" for v in left
    ]
    more = f" and {len(left) - _MOST_REASONS} more" if len(left) > _MOST_REASONS else ""
    names = escape(", ".join(numbers[:_MOST_REASONS]) + more)
    told = exact + ([f"not evaluated, as the case already failed: {names}"] if left else [])
    return [*told, ""] if told else []


def _next_steps(result: CaseResult, command: str) -> list[str]:
    accept, why_not = accept_command(result, command), _why_not_accepted(result)
    intended = [f"intended?  {accept}, then commit the baselines"] if accept else []
    return [f"reproduce  {command}", *filter(None, [why_not]), *intended]


def accept_command(result: CaseResult, command: str) -> str:
    """What stores the numbers of a failed case as its new baseline; empty: none does, or nothing is stored."""
    is_stored = result.reference.kind == "stored" and result.launches[-1].outcome == "passed"
    return f"{command} --distbench-update" if is_stored and not _why_not_accepted(result) else ""


def _why_not_accepted(result: CaseResult) -> str:
    """An update accepts a change, and no value beyond a bound."""
    if any(v.code == "bound" for v in result.verdicts):
        return "no update accepts this: fix what was measured, or change the bound where it was set"
    regressed = [v for v in result.verdicts if v.row.may_be_confirmed]
    if any(v.current is None and METRIC_KINDS[v.better].rule != "steps" for v in regressed):
        return "no update accepts a metric without a value: fix what was measured"
    return ""


def lost_text(names: Sequence[EntryName], paths: Sequence[str], *, folder: str, command: str) -> str:
    cases = [name.key for name in names]
    more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
    parts = [word for name in names[:_MOST_REASONS] for word in ("-k", str(name))]
    prune = shlex.join(["distbench", "baseline", "prune", "--baselines", folder, *parts, "--delete"])
    return "\n".join(
        [
            escape(f"{cases[0]}{more}: in the baseline, and not measured by this test"),
            "",
            "no call of distbench.run, judge or a ready fixture measured:",
            *(f"  {escape(case)}  {escape(path)}" for case, path in zip(cases, paths, strict=True)),
            "",
            f"If this is intended:  {prune}",
            f"reproduce  {command}",
        ]
    )


def refused_text(result: CaseResult) -> str:
    return "\n".join(
        [
            refused_headline(result),
            "",
            *(line.text for line in case_table(result, show_all=False)),
            "",
            "what was stored before is unchanged",
        ]
    )


def missing_text(result: CaseResult, *, platforms: Sequence[str], command: str) -> str:
    if result.reference.kind == "paired":
        return missing_headline(result)
    have = ", ".join(platforms) or "none"
    return (
        f"{missing_headline(result)} (have: {have})\n\n"
        f"looked in {result.reference.path} for {result.case.key}\nrecord it:  {command} --distbench-update=new"
    )


def refused_headline(result: CaseResult) -> str:
    return f"not stored: {why_not_stored(result.launches, result.verdicts)}"


def missing_headline(result: CaseResult) -> str:
    if result.reference.kind == "paired":
        return f"{result.verdicts[0].reason or 'nothing to compare with'}: measured, not judged"
    return f"no baseline for {result.environment.platform}"


def nothing_judged_headline(result: CaseResult) -> str:
    shown = ", ".join(v.metric for v in result.verdicts if v.name != PEAK_MEMORY) or "nothing"
    if any(m.is_judged and m.name != PEAK_MEMORY for m in result.launches[-1].measurements):
        return f"nothing that was measured is among the metrics= of the test's marker; there are {shown}"
    return (
        f"nothing was measured that can be judged: the body recorded {shown}; give what matters to rank.record "
        "with better='lower', 'higher' or 'exact', or use rank.timed. A body that only asserts: distbench.check"
    )


def unaccepted_headline(unaccepted: Sequence[Finding]) -> str:
    """One line: the first metric, its verdict, why, how many, and the option that makes it fail."""
    first = unaccepted[0]
    option = f"--{first.row.fails_under}"
    more = f" (and {len(unaccepted) - 1} more)" if len(unaccepted) > 1 else ""
    answer = first.code if first.kind == "unchanged" else first.kind
    return f"{metric_text(first)}: {answer}: {first.reason or change(first)}{more}; {option}"


def regression_headline(result: CaseResult) -> str:
    against = f" against {result.reference.name}" if result.reference.name else ""
    changed = next((v.reason for v in result.verdicts if v.code == "communication"), "")
    failed = [v for v in result.verdicts if v.is_failure and v.code != "communication"]
    if not failed:
        return f"communication changed{against}: {changed}"
    return _movement(result, failed, against) + ("; communication changed" if changed else "")


def _movement(result: CaseResult, failed: Sequence[Finding], against: str) -> str:
    first = worst(failed)
    of = _how_many(result, first, failed)
    name, kind = metric_text(first), METRIC_KINDS[first.better]
    if first.code == "bound":
        return f"{name}: {first.reason}{of}"
    if not first.row.may_be_confirmed:
        return f"{name}{against}: {first.kind}: {first.reason or change(first)}{of}"
    if first.current is None:
        return f"{name}{against}: no value ({first.reason}), baseline {quantity(first.baseline, first.unit)}{of}"
    if kind.is_of_training and first.reason:
        return f"{name}{against}: {first.reason.partition(';')[0]}{of}"
    if kind.rule == "exact":
        now, then = quantity(first.current, first.unit), quantity(first.baseline, first.unit)
        return f"{name}{against}: {now}, baseline {then} (exact){of}"
    most = threshold(first)
    allowed = f" (threshold {most})" if most else f": {first.reason}"
    return f"{name} {change(first) or first.reason}{against}{allowed}{of}"


def _how_many(result: CaseResult, first: Finding, failed: Sequence[Finding]) -> str:
    """How far it goes: over the sizes of its sweep, or over the metrics."""
    if "message_bytes" in first.at:
        same = [v for v in result.verdicts if v.name == first.name]
        return f", {sum(v.is_failure for v in same)} of {len(same)} sizes"
    return f", {len(failed)} of {len(result.verdicts)} metrics" if len(failed) > 1 else ""


def comparison_lines(result: CaseResult, *, recorded_at: str = "") -> list[str]:
    """What was compared: the two revisions, or the file of the baseline with the commit that it is of."""
    stored = result.reference.software
    current = result.launches[0].software if result.launches else {}
    if result.reference.kind == "paired":
        sides = [("baseline ", result.reference.name, stored), ("candidate", "", current)]
        lines = ["  ".join(filter(None, [side, name, _versions(software)])) for side, name, software in sides]
    elif any(v.baseline is not None for v in result.verdicts):
        path = os.path.relpath(result.reference.path) if result.reference.path else ""
        shown = result.reference.path if path.startswith("..") else path
        commit = f", recorded at {recorded_at}" if recorded_at else ""
        lines = [f"baseline   {shown}{commit}", f"           {_versions(stored)}"]
        lines += [
            f"           of {name}, whose test is gone: this one has its parameters and metrics; "
            "--distbench-update=new moves it"
            for name in result.reference.gone
        ]
    else:
        lines = [f"this run   {result.environment.platform}  {_versions(current)}"]
    if (turns := result.confirmation) is not None and turns.references:
        sides_of = f"candidate ({short(turns.here)}) and twice {turns.revision}, the baseline commit"
        lines.append(f"A/B        {sides_of}: {len(turns.launches)} times in {turns.took_s:.0f} s")
    return lines + ([f"differs    {what}" for what in software_changes(stored, current)] if stored else [])


def short(commit: str) -> str:
    """A commit as texts name it, with what follows the hash."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]*", r"\1", commit)


def _versions(software: dict[str, str]) -> str:
    return ", ".join(f"{k} {software[k]}" for k in ("torch", "cuda", "nccl", "python") if k in software)


def headline(result: CaseResult, conclusion: Conclusion) -> str:
    why_not = f" (advisory: {result.advisory})" if conclusion.outcome == "advisory" else ""
    return _headline(result, conclusion) + why_not


def _headline(result: CaseResult, conclusion: Conclusion) -> str:
    launch = result.launches[-1]
    match conclusion.reason:
        case "launch" if launch.outcome == "skipped":
            return launch.reason or "all ranks skipped"
        case "launch":
            return launch_headline(launch)
        case "nothing_judged":
            return nothing_judged_headline(result)
        case "refused":
            return refused_headline(result)
        case "failed" | "bound" if conclusion.outcome == "xfailed":
            return result.xfail_perf
        case "failed" | "bound":
            return regression_headline(result)
        case "unaccepted":
            return unaccepted_headline(conclusion.verdicts)
        case "new":
            return missing_headline(result)
        case "not_found":
            return not_found_headline(result)
        case _:
            return ""


def explanation(
    result: CaseResult, conclusion: Conclusion, *, command: str, platforms: Sequence[str], recorded_at: str = ""
) -> str:
    """The text of a failed test; ``platforms`` are the hardware classes that have baselines.

    ``recorded_at`` is the commit that the baseline is of; empty: nobody knows.
    """
    match conclusion.reason:
        case "launch":
            return launch_text(result, rerun_command=command)
        case "refused":
            return refused_text(result)
        case "failed" | "bound":
            return regression_text(result, command=command, recorded_at=recorded_at)
        case "unaccepted":
            return unaccepted_text(result, conclusion.verdicts, command=command, recorded_at=recorded_at)
        case "new":
            return missing_text(result, platforms=platforms, command=command)
        case "not_found":
            return not_found_text(result, command=command)
        case _:
            return headline(result, conclusion)
