"""A trace of a case: launches more, with torch's profiler on, that are neither judged nor stored, and their file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.screening import is_clock
from pytest_distbench.launch.communication import busy_communication
from pytest_distbench.launch.trace import LoopTrace, Side, write_file
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.trace import THIS_TREE, CaseTrace, TracedSide
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.run.against import Variant
from pytest_distbench.run.kinds import kind_of
from pytest_distbench.run.loop import Session
from pytest_distbench.run.outputs import place
from pytest_distbench.run.samples import Samples
from pytest_distbench.run.settings import Settings, TraceSettings
from pytest_distbench.store.files import replace_file

SUFFIX = ".trace.json.gz"


def wants_trace(settings: Settings, result: CaseResult) -> bool:
    """Whether a case that has its verdicts is to get a trace; one whose regression was expected is as it should be."""
    if settings.trace is None or not settings.judges or result.launches[-1].outcome != "passed":
        return False
    is_slower = not result.xfail_perf and any(map(_is_slower, result.verdicts))
    return settings.trace.cases == "all" or is_slower


def _is_slower(verdict: Verdict) -> bool:
    is_timed = is_clock(verdict, verdict.unit) or verdict.unit == "s"
    return is_timed and verdict.kind in ("regressed", "beyond")


def make_trace(session: Session, launched: LaunchRequest, samples: Samples, variant: Variant | None) -> CaseTrace:
    """Launch a case once more for its trace, and what it was compared with; whatever goes wrong is told in the trace.

    Args:
        session: the run.
        launched: what is launched.
        samples: the launches that were judged.
        variant: what they were compared with on the spot; None: with nothing, or with what is stored.
    """
    assert session.settings.trace is not None
    if why := _why_not(session, launched):
        return CaseTrace(why_not=why)
    traced: dict[str, Side] = {}
    troubles = []
    with session.alone(launched.world_size, takes_host=samples.takes_host):
        for side in (variant, None) if variant is not None else (None,):
            name = str(side or THIS_TREE)
            try:
                traces = session.launching.profile(launched, len(samples), side)
            except DistbenchError as error:
                troubles.append(f"the launch of {name} with the profiler: {error}")
            else:
                traced[name] = _side(side, traces)
    if not traced:
        return CaseTrace(why_not="; ".join(troubles))
    try:
        path = _write(session.settings.trace, launched.title, list(traced.values()))
    except DistbenchError as error:
        return CaseTrace(why_not=str(error))
    sides = [TracedSide(name=name, busy=busy_communication(side.traces)) for name, side in traced.items()]
    return CaseTrace(path=str(path), sides=sides, why_not="; ".join(troubles))


def _side(variant: Variant | None, traces: Sequence[LoopTrace]) -> Side:
    if variant is None:
        return Side(name=THIS_TREE, traces=traces)
    return Side(name="base", note=f"({variant.revision.commit[:10] if variant.revision else variant})", traces=traces)


def _why_not(session: Session, launched: LaunchRequest) -> str:
    """Why no profiler can look into launches of a case; empty: it can."""
    if why := kind_of(launched.work).why_no_trace:
        return why
    return "its ranks are of several hosts" if session.launching.hosting(launched.work).hosts == "many" else ""


def _write(settings: TraceSettings, title: str, sides: Sequence[Side]) -> Path:
    """Write the file, whole or not at all."""
    known = place(settings.folder, title)
    path = known.with_name(known.name + SUFFIX)
    files = {path: write_file(sides)} | ({settings.folder / ".gitignore": b"*\n"} if settings.is_ours else {})
    for target, content in files.items():
        with replace_file(target, next_step="Give a writable folder: --distbench-logs DIR") as file:
            file.write(content)
    return path
