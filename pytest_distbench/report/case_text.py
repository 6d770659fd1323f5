"""Texts of failed tests. The first line tells the story in about 100 characters; JUnit and summaries show only it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.judging.software import software_changes
from pytest_distbench.judging.update_policy import why_not_storable
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.rank import RankFate
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.causes import cause_lines
from pytest_distbench.report.tables import case_table, change, limit, quantity
from pytest_distbench.units import format_bytes

_FEW_LINES = 30
_FEW_LOGS = 4
_STACK_LINES = 90
_LONGEST_LINE = 500
_LONGEST_TEXT = 8000


def regression_text(result: CaseResult, *, update_command: str) -> str:
    """Explain a regression: what moved, by how much, against what, and how to accept it."""
    return "\n".join(
        [
            regression_headline(result),
            "",
            *case_table(result, show_all=False),
            "",
            *_reasons(result),
            *cause_lines(result),
            *comparison_lines(result),
            "",
            f"If this change is intended:  {update_command}",
        ]
    )


def refused_text(result: CaseResult) -> str:
    """Explain why an update did not store what it measured."""
    return "\n".join(
        [
            f"not stored: {why_not_storable(result.launches)}",
            "",
            *case_table(result, show_all=False),
            "",
            "what was stored before is unchanged; give it more steps or a nearer goal, and record it again",
        ]
    )


def unaccepted_text(result: CaseResult, unaccepted: Sequence[Verdict], *, update_command: str) -> str:
    """Explain verdicts that fail only because the run was told so: which, why, and how to accept them."""
    return "\n".join(
        [
            unaccepted_headline(unaccepted),
            "",
            *case_table(result, show_all=False),
            "",
            *[f"{v.metric}: {v.reason}" for v in unaccepted if v.reason][:8],
            *comparison_lines(result),
            "",
            f"If what was measured is right:  {update_command}",
        ]
    )


def unaccepted_headline(unaccepted: Sequence[Verdict]) -> str:
    """One line: the first metric, its verdict, why, how many, and the option that makes it fail."""
    first = unaccepted[0]
    option = f"--{VERDICT_KINDS[first.kind].fails_under}"
    more = f" (and {len(unaccepted) - 1} more)" if len(unaccepted) > 1 else ""
    return f"{first.metric}: {first.kind}: {first.reason or change(first)}{more}; {option}"


def regression_headline(result: CaseResult) -> str:
    """One line: metric, change, where, limit, how many; and whether the fingerprint changed with it."""
    changed = next((f"fingerprint changed: {v.reason}" for v in result.verdicts if v.kind == "changed"), "")
    failed = [v for v in result.verdicts if v.kind == "regressed"]
    if not failed:
        return changed
    return _moved(result, failed) + ("; the fingerprint changed" if changed else "")


def _moved(result: CaseResult, failed: list[Verdict]) -> str:
    worst = max(
        failed, key=lambda v: (METRIC_KINDS[v.better].rule == "curve", _severity(v))
    )  # a curve is the earliest to go
    same = [v for v in result.verdicts if v.name == worst.name]
    hits = sum(v.is_failure for v in same)
    where = f" at {format_bytes(int(worst.at['message_bytes']))}" if "message_bytes" in worst.at else ""
    of = (
        f", {hits} of {len(same)} sizes"
        if where
        else f", {len(failed)} of {len(result.verdicts)} metrics"
        if len(failed) > 1
        else ""
    )
    name = worst.name if where else worst.metric
    if worst.current is None:
        return f"{name}{where}: no value ({worst.reason}), baseline {quantity(worst.baseline, worst.unit)}{of}"
    if METRIC_KINDS[worst.better].is_of_training and worst.reason:
        return f"{name}: {worst.reason.partition(';')[0]}{of}"
    if METRIC_KINDS[worst.better].rule == "exact":
        now, then = quantity(worst.current, worst.unit), quantity(worst.baseline, worst.unit)
        return f"{name}{where}: {now}, baseline {then} (exact){of}"
    return f"{name}{where} {change(worst)} (limit {limit(worst)}){of}"


def comparison_lines(result: CaseResult) -> list[str]:
    """Which baseline, which software, and what differs."""
    current = result.launches[0].software if result.launches else {}
    stored = result.reference.software
    lines = [f"baseline  {result.environment.platform}  {_versions(stored)}  {result.reference.path}"]
    lines.append(f"this run  {result.environment.platform}  {_versions(current)}")
    return lines + ([f"differs   {change}" for change in software_changes(stored, current)] if stored else [])


def launch_text(result: CaseResult, *, rerun_command: str) -> str:
    """Explain a failed launch: the culprit first, equal fates merged, then the logs and the command to run it again."""
    launch = result.launches[-1]
    parts = [launch_headline(launch), ""]
    groups: dict[tuple[str, str], list[RankFate]] = {}
    for fate in launch.fates:
        groups.setdefault((_title_of(fate), _body_of(fate)), []).append(fate)
    for (title, body), fates in groups.items():
        numbers = ", ".join(str(f.rank) for f in sorted(fates, key=lambda f: f.rank))
        parts += [f"--- rank{'s' * (len(fates) > 1)} {numbers}: {title}", *([body, ""] if body else [])]
        for fate in fates[:_FEW_LOGS]:
            parts += _log_of(fate, launch)
    parts += _launcher_lines(launch)
    parts.append(f"logs:    {launch.logs}/rank*.log")
    parts.append(f"re-run:  {rerun_command}")
    parts.append(f"debug:   {rerun_command} --distbench-attach {launch.fates[0].rank if launch.fates else 0}")
    return "\n".join(parts)


def launch_headline(launch: LaunchRecord) -> str:
    """One line: which launch, on how many ranks, and what happened."""
    ranks = len(launch.fates)
    return f"launch {launch.index + 1} on {ranks} rank{'s' * (ranks != 1)}: {_first_line(launch)}"


def missing_text(result: CaseResult, *, platforms: list[str], update_command: str) -> str:
    """Say that there is no baseline, where there are some, and how to record one."""
    have = ", ".join(platforms) or "none"
    return (
        f"no baseline for {result.environment.platform} (have: {have})\n\n"
        f"looked in {result.reference.path} for {result.case.key!s}\nrecord it:  {update_command}"
    )


def _severity(verdict: Verdict) -> float:
    if verdict.ratio is None or verdict.ratio <= 0:
        return float("inf")
    return max(verdict.ratio, 1 / verdict.ratio)


def _reasons(result: CaseResult) -> list[str]:
    return [f"{v.metric}: {v.reason}" for v in result.verdicts if v.kind == "regressed" and v.reason][:8]


def _versions(software: dict[str, str]) -> str:
    return ", ".join(f"{k} {software[k]}" for k in ("torch", "cuda", "nccl", "python") if k in software)


def _first_line(launch: LaunchRecord) -> str:
    return (launch.reason.splitlines() or ["failed"])[0][:_LONGEST_LINE]


def _title_of(fate: RankFate) -> str:
    """How the rank ended, where, and whether it was another's fault."""
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
        return _shortened(fate.error.traceback.rstrip())
    if not fate.is_hung:
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


def _launcher_lines(launch: LaunchRecord) -> list[str]:
    """What the launcher itself said, where no rank said anything."""
    lines = launch.reason.splitlines()[1:]
    return (
        ["the launcher's log:", *(f"    | {line[:_LONGEST_LINE]}" for line in lines[-_FEW_LINES:]), ""] if lines else []
    )


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out, the log has them ...\n{text[-half:]}"
