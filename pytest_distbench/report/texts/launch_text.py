"""A failed launch as text: the culprit first, then what each rank left behind, and how to run it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.launch.starters.table import LAUNCHERS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.rank import RankFate
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.texts.escape import escape

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
    """What belongs to the reason: what a launcher said, or the output that was searched in vain."""
    lines = launch.reason.splitlines()[1:]
    return [f"    | {line[:_LONGEST_LINE]}" for line in lines[-_FEW_LINES:]]


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out, the log has them ...\n{text[-half:]}"
