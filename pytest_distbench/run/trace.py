"""A trace of a case: launches more, with torch's profiler on, that are neither judged nor stored, and their file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.screening import is_clock
from pytest_distbench.launch.communication import busy_communication
from pytest_distbench.launch.trace import Side, write_file
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.trace import CaseTrace, TracedSide
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.run.against import Variant
from pytest_distbench.run.kinds import kind_of
from pytest_distbench.run.loop import Session
from pytest_distbench.run.outputs import place
from pytest_distbench.run.samples import Samples
from pytest_distbench.run.settings import Settings

SUFFIX = ".trace.json.gz"
THIS_TREE = "this tree"


def wants_trace(settings: Settings, result: CaseResult) -> bool:
    """Whether a case that has its verdicts is to get a trace: one that failed to launch, or was to be slower, is not."""
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
    sides, troubles = [], []
    with session.alone(launched.world_size, takes_host=samples.takes_host):
        for side, note in [(variant, f"({variant})"), (None, "")] if variant is not None else [(None, "")]:
            name = THIS_TREE if side is None else "base"
            try:
                traces = session.launching.profile(launched, len(samples), side)
                sides.append((Side(name=name, note=note, traces=traces), str(side or THIS_TREE)))
            except DistbenchError as error:
                troubles.append(f"the launch of {side or THIS_TREE} with the profiler: {error}")
    path = ""
    if sides:
        try:
            path = _write(session.settings.trace.folder, launched.title, [side for side, _ in sides])
        except OSError as error:
            return CaseTrace(why_not=f"cannot write {error.filename or session.settings.trace.folder}: {error.strerror}")
    told = [TracedSide(name=name, busy=busy_communication(side.traces)) for side, name in sides]
    return CaseTrace(path=path, sides=told, why_not="; ".join(troubles))


def _why_not(session: Session, launched: LaunchRequest) -> str:
    """Why no profiler can look into launches of a case; empty: it can."""
    if why := kind_of(launched.work).why_no_trace:
        return why
    return "" if session.launching.hosting(launched.work).hosts == "one" else "its ranks are of several hosts"


def _write(folder: Path, title: str, sides: Sequence[Side]) -> str:
    """Write the file, whole or not at all."""
    known = place(folder, title)
    path = known.with_name(known.name + SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=SUFFIX)
    try:
        with open(descriptor, "wb") as file:
            file.write(write_file(sides))
        os.chmod(draft, 0o644)
        Path(draft).rename(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return str(path)
