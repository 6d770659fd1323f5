"""What became of each rank, and which failure caused the others."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_distbench.launch.contract import Exit
from pytest_distbench.launch.control import ControlChannel
from pytest_distbench.launch.stacks import trimmed, waits_at
from pytest_distbench.records import LaunchPlan, Phase, RankFate, RankReport

LOG_TAIL_LINES = 30
_STACKS_LINES = 500
_TAIL_BYTES = 64 * 1024
_LARGEST_REPORT = 256 * 2**20

_VICTIM = re.compile(
    r"connection (closed|reset) by peer|broken pipe|remote process exited|DistBackendError|NCCL error"
    r"|connection was (closed|reset)|store.*(timeout|timed out)|wait timeout after|timed out waiting"
    r"|application timeout",
    re.IGNORECASE,
)
"""Texts of errors that a rank gets because another rank is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a launch ended, as seen from outside the ranks."""

    exit: Exit
    timed_out: bool
    ended_by_us: frozenset[int]
    """Ranks that were alive when the launch was ended by force."""


def read_reports(plan: LaunchPlan) -> dict[int, RankReport]:
    """The reports that ranks left behind, by rank. A missing or damaged one is left out: its rank died writing it."""
    reports = {}
    for rank in range(plan.world_size):
        path = Path(plan.directory) / f"rank{rank}.json"
        try:
            if path.stat().st_size <= _LARGEST_REPORT:
                reports[rank] = msgspec.json.decode(path.read_bytes(), type=RankReport)
        except (OSError, msgspec.DecodeError):
            continue
    return reports


def tell_fates(
    plan: LaunchPlan, reports: Mapping[int, RankReport], channel: ControlChannel, ending: Ending
) -> list[RankFate]:
    """One fate per rank, the root cause first: by time, known victims last."""
    fates = [_fate(plan, rank, reports.get(rank), channel, ending) for rank in range(plan.world_size)]
    return sorted(fates, key=lambda f: (f.outcome != "failed", f.is_victim, _moment(f, channel), f.rank))


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log of any size; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _fate(plan: LaunchPlan, rank: int, report: RankReport | None, channel: ControlChannel, ending: Ending) -> RankFate:
    directory = Path(plan.directory)
    phase: Phase = msgspec.convert(channel.last_phase(rank), Phase)
    code = ending.exit.codes.get(rank)
    hung = ending.timed_out and rank in ending.ended_by_us
    log = tail(directory / f"rank{rank}.log")
    if report is not None and report.outcome != "passed":
        error = report.error
        text = f"{error.kind}: {error.message}" if error else ""
        return RankFate(
            rank=rank,
            outcome=report.outcome,
            phase=report.phase,
            how=f"raised {error.kind}" if error and report.outcome == "failed" else "skipped",
            is_victim=bool(_VICTIM.search(text)),
            error=error,
            log_tail=log,
        )
    if report is not None and not hung and code in (None, 0):
        return RankFate(rank=rank, outcome="passed", phase=report.phase, how="passed")
    stopped = rank in ending.ended_by_us or code == -signal.SIGTERM
    if hung:
        how = "hung"
    elif stopped:
        how = "stopped by the launcher"
    elif code is not None:
        how = _describe(code)
    elif rank in channel.closed_at:
        how = "ended without a report"
    else:
        how = "never started"
    if report is not None and not hung and stopped:
        return RankFate(rank=rank, outcome="passed", phase=report.phase, how="passed")
    stacks = tail(directory / f"stacks{rank}.txt", _STACKS_LINES) if hung else ""
    return RankFate(
        rank=rank,
        outcome="failed",
        phase=phase,
        how=how,
        is_victim=stopped and not hung,
        log_tail=log,
        stacks=trimmed(stacks),
        waits_at=waits_at(stacks),
    )


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _moment(fate: RankFate, channel: ControlChannel) -> float:
    """When a rank failed. One that died without a word did so before its connection closed."""
    if fate.error is not None:
        return fate.error.raised_at
    return channel.closed_at.get(fate.rank, float("inf"))
