"""Fake ranks, with which authors test the expectations of a suite in milliseconds.

A pytest plugin: ``-p pytest_distbench.testing``, or ``pytest_plugins = ["pytest_distbench.testing"]`` in the root
conftest, adds the launcher ``stand-in`` (``--distbench-launcher stand-in``). It starts no process, and runs no body: it
writes the reports that ranks would have left, from what the test or the environment describes. Everything after that
is real: reduction over ranks, verdicts, baselines (stored under the launcher's name), reports.

What ranks record is described in ``params["stand_in"]``, or as JSON in ``DISTBENCH_STAND_IN`` for all tests whose
params have none: a mapping from a metric's name to its value.

- The name is ``step``, ``latency[message_bytes=1024]`` or ``loss[seed=3]``: a time in seconds, of which less is better.
  ``count!exact`` is of another kind, without a unit: ``higher``, ``exact``, ``info``, ``curve``.
- The value is a number; or a list of one per launch, which starts over when it is used up. None means that
  nothing was measured. A value that is a list itself is a series.

The environment changes it from one run to the next:

- ``DISTBENCH_STAND_IN_FACTOR``: multiplies times and curves.
- ``DISTBENCH_STAND_IN_ERROR``: every rank raises this, ``message`` or ``kind:message``.
- ``DISTBENCH_STAND_IN_SOFTWARE``: software that ranks report, ``torch=2.14.0 numpy=2``.
- ``DISTBENCH_STAND_IN_COLLECTIVES``: ``2x26214400`` gives the metric ``step`` a fingerprint of so many all_reduce of so
  many bytes.
- ``DISTBENCH_STAND_IN_REFERENCE_FACTOR`` and ``..._REFERENCE_ERROR``: the same for another revision
  (``--distbench-against``).

PYTEST_DONT_REWRITE: there is no assertion here, and pytest would warn where a conftest imports from it first.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import psutil

from pytest_distbench.errors import LauncherError, show
from pytest_distbench.launch.site import Exit
from pytest_distbench.launch.site.local import LocalSite
from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import ErrorReport, RankReport
from pytest_distbench.records.metric import LARGEST_NUMBER, NAME, Observation, Scalar
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.units import as_float

STAND_IN = "stand-in"
VARIABLE = "DISTBENCH_STAND_IN"

SOFTWARE = {"python": "3.11", "torch": "2.13.0", "numpy": "2", "cpu_capability": "AVX2", "threads": "1"}
"""Software that fake ranks report, unless the environment says otherwise."""

_AT = re.compile(r"\[(\w+=[^=,\]]+(?:,\w+=[^=,\]]+)*)\]$")  # what stands behind a metric's name


class StandInLauncher:
    """Starts no process: the reports of its ranks are written at once."""

    name = STAND_IN

    def __init__(self, session: str) -> None:
        self.session = session

    def prepare(self, variables: dict[str, str]) -> None:
        """Does nothing: no process is started."""

    def open(self, plan: LaunchPlan) -> LocalSite:
        return LocalSite(self, plan)

    def start(self, plan: LaunchPlan) -> _StandInLaunch:
        for rank in range(plan.processes):
            plan.files.report(rank).write_bytes(msgspec.json.encode(_report(plan, rank)))
        return _StandInLaunch()

    def leftovers(self) -> list[psutil.Process]:
        return []

    def close(self) -> None:
        """Does nothing: no process runs."""


class _StandInLaunch:
    """A launch that has ended before it is polled."""

    def __init__(self) -> None:
        self._readable, writable = os.pipe()
        os.close(writable)

    def fileno(self) -> int:
        return self._readable

    def poll(self) -> Exit:
        os.close(self._readable)
        return Exit()

    def pids(self) -> dict[int, int]:
        return {}

    def drivers(self) -> list[int]:
        return []

    def abandon(self) -> None:
        """Does nothing: no process runs."""


LAUNCHERS[STAND_IN] = LauncherKind(
    help="fake ranks, for tests of suites",
    make=lambda setup: StandInLauncher(setup.session),
    hosts="none",
    holds_two=True,
    is_spaced=False,
)


def _report(plan: LaunchPlan, rank: int) -> RankReport:
    side = "REFERENCE_" if plan.tree else ""
    text = _setting(f"{side}FACTOR") or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise LauncherError(f"{VARIABLE}_{side}FACTOR={text!r}; wanted a finite number above 0, such as 1.5")
    kind, _, message = _setting(f"{side}ERROR").rpartition(":")
    kind, now = kind or "ValueError", time.monotonic()
    error = ErrorReport(kind=kind, message=message, traceback=f"{kind}: {message}", raised_at=now)
    text = _setting("SOFTWARE")
    pairs = [pair.partition("=") for pair in text.split()]
    if not all(name and separator for name, separator, _ in pairs):
        raise LauncherError(f"{VARIABLE}_SOFTWARE={text!r}; wanted names with versions, such as torch=2.14.0 numpy=2")
    fingerprints = {}
    if text := _setting("COLLECTIVES"):
        sent = re.fullmatch(r"(\d+)x(\d+)", text)
        if sent is None:
            raise LauncherError(
                f"{VARIABLE}_COLLECTIVES={text!r}; wanted how many of how many bytes, such as 2x26214400"
            )
        rows = [Collective("all_reduce", "float32", int(sent[2]), "default", int(sent[1]))]
        fingerprints["step"] = Fingerprint(collectives={str(rank): rows})
    return RankReport(
        rank=rank,
        outcome="failed" if message else "passed",
        phase="body",
        phases={"begin": now, "end": now, "body": 0.0},
        error=error if message else None,
        observations=list(_observations(_description(plan), plan.index, factor)),
        fingerprints=fingerprints,
        software={**SOFTWARE, **{name: version for name, _, version in pairs}} if rank == 0 else {},
    )


def _setting(name: str) -> str:
    return os.environ.get(f"{VARIABLE}_{name}", "")


def _description(plan: LaunchPlan) -> Mapping[str, Any]:
    found: object = plan.work.params.get("stand_in")
    if found is None:
        text = os.environ.get(VARIABLE, "{}")
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise LauncherError(f"{VARIABLE} is not JSON: {error}; found {text[:80]!r}") from None
    if not isinstance(found, dict):
        raise LauncherError(
            f"launcher {STAND_IN}: wanted a mapping from metrics to values, found {found!r}; "
            'write params={"stand_in": {"step": 0.02}}'
        )
    return found


def _observations(described: Mapping[str, Any], launch: int, factor: float) -> Iterator[Observation]:
    for spelled, values in described.items():
        key, _, better = spelled.partition("!")
        if better and better not in METRIC_KINDS:
            raise LauncherError(f"{spelled!r}: unknown kind {better!r}; known are {', '.join(METRIC_KINDS)}")
        point = _AT.search(key)
        name, pairs = (key, ()) if point is None else (key[: point.start()], point[1].split(","))
        at: dict[str, Scalar] = {}
        for axis, _, text in (pair.partition("=") for pair in pairs):
            at[axis] = int(text) if text.isdecimal() else text
        if NAME.take(name) is None:
            raise LauncherError(
                f"{spelled!r} is no metric; wanted a name, or one at a point: latency[message_bytes=1024]"
            )
        listed = values if isinstance(values, list) else [values]
        for value in listed or [[]]:
            found = [as_float(number) for number in (value if isinstance(value, list) else [value])]
            if value is not None and (not found or any(n is None or not abs(n) <= LARGEST_NUMBER for n in found)):
                raise LauncherError(f"{spelled!r}: {show(value)}; wanted a finite number, a list of them, or None")
        value = listed[launch % len(listed)]
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if better in ("", "curve"):
            numbers = [number * factor for number in numbers]
        yield Observation(
            name=name,
            unit="" if better else "s",
            better=better or "lower",
            reduce="max",
            values=numbers,
            is_series=isinstance(value, list),
            at=at,
        )
