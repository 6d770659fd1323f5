"""Texts of failed tests, below the line that says what decided.

One text per kind of failure, whatever the case was compared with: a stored baseline, or launches beside it. Of a
failed launch the culprit comes first, then what each rank left behind, and how to run it again.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.judging.outcome import LONGEST_LINE, launch_headline, planted_ratio
from pytest_distbench.judging.terms import software_changes
from pytest_distbench.judging.words import metric_text
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord, RankFate
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.summaries import grouped
from pytest_distbench.report import escape, layout
from pytest_distbench.report.verdicts import case_table
from pytest_distbench.units import format_change, plural, quantity

_FEW_LINES = 30
_FEW_LOGS = 4
_STACK_LINES = 90
_LONGEST_TEXT = 8000
_MOST_REASONS = 8


def explanation(result: CaseResult, *, command: str, platforms: Sequence[str], recorded_at: str = "") -> str:
    """The text of a failed test; ``platforms`` are the hardware classes that have baselines.

    ``recorded_at`` is the commit that the baseline is of; empty: nobody knows.
    """
    if result.decision == "launch":
        return launch_text(result, rerun_command=command)
    lines = [escape(result.headline)]
    table = [line.text for line in case_table(result, show_all=False)]
    match result.decision:
        case "failed" | "bound" | "unaccepted":
            is_number = result.decision != "unaccepted"
            found = [v for v in result.verdicts if v.is_judged and (v.is_failure if is_number else v.row.fails_under)]
            reasons = [f"{metric_text(v)}: {v.reason}" for v in found if v.reason and v.code != "communication"]
            told = [escape(text) for text in reasons if text != result.headline]
            if any(v.code not in ("communication", "not-evaluated") and not v.row.is_quiet for v in result.verdicts):
                lines += ["", *table]
            lines += ["", *told[:_MOST_REASONS]]
            lines += cause_lines(result) if is_number else []
            lines += [*_not_timed(result), *comparison_lines(result, recorded_at=recorded_at)]
            lines += _next_steps(result, command)
        case "refused":
            lines += ["", *table, "", "what was stored before is unchanged"]
        case "new" if result.reference.kind != "paired":
            lines[0] += f" (have: {', '.join(platforms) or 'none'})"
            lines += ["", f"looked in {result.reference.path} for {result.case.key}"]
            lines += [f"record it:  {command} --distbench-update=new"]
        case "not_found":
            lines += _not_found(result, command)
    return "\n".join(lines)


def cause_lines(result: CaseResult) -> list[str]:
    """What may explain the failure, and an empty line; nothing where nothing does."""
    lines = [line for cause in result.causes for line in (cause.reason, *(f"  {more}" for more in cause.differences))]
    return [*lines, ""] if lines else []


def launch_text(result: CaseResult, *, rerun_command: str) -> str:
    """Explain a failed launch: the culprit first, what GPUs and launcher say, equal fates merged, logs, the command."""
    launch = result.launches[-1]
    further = [f"    | {line[:LONGEST_LINE]}" for line in launch.reason.splitlines()[1:][-_FEW_LINES:]]
    parts = [escape(launch_headline(launch)), *further, *map(escape, launch.remarks), ""]
    for (title, body), fates in grouped(((_title_of(fate), _body_of(fate)), fate) for fate in launch.fates).items():
        ranks = sorted(fate.rank for fate in fates)
        names = ", ".join(f"{rank} ({launch.hosts[rank]})" if launch.hosts else str(rank) for rank in ranks)
        who = escape(launch.command[:LONGEST_LINE]) or f"{plural(len(fates), 'rank')} {names}"
        parts += [f"--- {who}: {title}", *([body, ""] if body else [])]
        for fate in fates[:_FEW_LOGS]:
            parts += _log_of(fate, launch)
    parts.append(f"logs:    {launch.logs}/rank*.log")
    parts.append(f"re-run:  {rerun_command}")
    launcher = LAUNCHERS.get(result.case.conditions.launcher)
    has_terminal = launcher is None or launcher.hosts == "one"
    if not launch.command and not result.case.conditions.engine and has_terminal:
        first = launch.fates[0].rank if launch.fates else 0
        parts.append(f"debug:   {rerun_command} --distbench-attach {first}")
    return "\n".join(parts)


def remark_lines(launches: Sequence[LaunchRecord]) -> list[str]:
    """What launches that passed have to say, each line once, with the number of launches that said it."""
    counts = Counter(remark for launch in launches for remark in dict.fromkeys(launch.remarks))
    return [f"{remark} ({count} of {len(launches)} launches)" for remark, count in counts.items()]


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
        *(f"    | {line[:LONGEST_LINE]}" for line in lines),
        "",
    ]


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out, the log has them ...\n{text[-half:]}"


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


def _not_found(result: CaseResult, command: str) -> list[str]:
    assert result.control is not None
    control = result.control
    rows = [
        (
            metric_text(v),
            format_change(planted_ratio(control, v)),
            format_change(v.ratio) if v.ratio is not None else "-",
            f"+{v.threshold:.1%}" if v.threshold is not None else "-",
            f"+{v.mde:.1%}" if v.mde is not None and math.isfinite(v.mde) else "-",
        )
        for v in control.verdicts
    ]
    reasons = [f"{metric_text(v)}: {v.reason}" for v in control.verdicts if v.reason]
    return [
        "",
        *map(escape, layout(("metric", "injected", "measured", "threshold", "MDE"), rows, left=1)),
        "",
        *map(escape, reasons[:_MOST_REASONS]),
        *([f"no A/B: {escape(control.why_alone)}"] if control.why_alone else []),
        f"what would help: {_HELP[control.step]}",
        f"again:  {command} --distbench-control{f'={control.share:g}' if control.is_chosen else ''}",
    ]


_HELP = {
    "screening": (
        "a baseline with more launches or of a quieter hour (--distbench-update), a larger tolerance, or "
        "--distbench-confirm=always, which runs A/B for every case"
    ),
    "turns": (
        "more iterations per loop, which reduce the noise of a pair; more time for pairs "
        "(--distbench-confirm=auto:SECONDS); or a larger tolerance"
    ),
    "stored": "whatever makes A/B possible (above); a baseline with more launches; or a larger tolerance",
}
