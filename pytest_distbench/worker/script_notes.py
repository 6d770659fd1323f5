"""What a script records with ``pytest_distbench.record``, ``timed`` and ``phase``.

As a body does; but a script has loops of its own, so what it records under one name again and again becomes a series.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.breakdown import PhasePlace
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import PHASE, WALL_TIME, Scalar, metric_key
from pytest_distbench.worker.arguments import (
    check_bounds,
    check_choice,
    check_metric,
    check_phase,
    check_point,
    check_values,
)
from pytest_distbench.worker.context import RankContext

CURRENT: ScriptNotes | None = None
"""Of the rank that this process is; None outside of ranks that run a script."""


class ScriptNotes:
    """The notes of one rank that runs a script; its context takes them, at the end those that were collected."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._collected: dict[str, tuple[str, dict[str, Any], list[float]]] = {}
        self._open: list[str] = []

    def record(self, name: str, value: Any, **options: Any) -> None:
        """As ``rank.record``; called again with the same options it gives the next value of a series."""
        call = f"record({show(name)})"
        name = check_metric(call, name)
        options["at"] = check_point(call, options.get("at"))
        key = metric_key(name, options["at"])
        values, is_series = check_values(call, value)
        given = options.pop("at_least", None), options.pop("at_most", None)
        options["bounds"] = check_bounds(call, *given, unit=options.get("unit", ""), by="record")
        if is_series or not values:
            self._context.record_bounded(name, value, **options)
            return
        self._collect(key, name, options, values[0])

    def timed(self, name: str, **options: Any) -> Iterator[int]:
        """As ``rank.timed``."""
        return self._context.timed(name, **options)

    @contextlib.contextmanager
    def phase(
        self, name: str, *, better: Literal["info", "lower"] = "info", at: Mapping[str, Scalar] | None = None
    ) -> Iterator[None]:
        """As ``rank.phase``; entered again with the same options it gives the next value of a series.

        Outside of a timed loop it is a part of the whole script.
        """
        if self._context.phases.in_loop:
            with self._context.phase(name, better=better):
                yield
            return
        names = [*self._open, check_phase(name, better)]
        path = PHASE + "/".join(names)
        point = check_point(f"phase({name!r})", at)
        self._open.append(name)
        try:
            self._context.synchronize()
            mark = self._context.delay.mark()
            start = self._context.own_clock()
            with self._in_trace(name):
                yield
        finally:
            self._open.remove(name)
        self._context.synchronize()
        self._context.delay.wait(mark)
        place = PhasePlace(loop=WALL_TIME, path=names)
        options = {"unit": "s", "better": better, "reduce": "max", "at": point, "bounds": (), "place": place}
        self._collect(metric_key(path, point), path, options, self._context.own_clock() - start)

    def _in_trace(self, name: str) -> AbstractContextManager[None]:
        profiler, inside = self._context.profiler, contextlib.nullcontext()
        return inside if profiler is None else profiler.phase(name, inside)

    def finish(self) -> None:
        """Record what was collected; the script is over."""
        for name, options, values in self._collected.values():
            is_series = len(values) > 1 or METRIC_KINDS[options.get("better", "info")].shape == "series"
            self._context.record_bounded(name, values if is_series else values[0], **options)
        self._context.check_complete()

    def _collect(self, key: str, name: str, options: dict[str, Any], value: float) -> None:
        if key not in self._collected:
            check_choice(f"record({name!r})", "better", options.get("better", "info"), METRIC_KINDS)
            self._collected[key] = name, options, []
        _, known, values = self._collected[key]
        if known != options:
            raise RecordingError(
                f"{key!r} is recorded with {_differing(options, known)}, and with {_differing(known, options)} before"
            )
        values.append(value)


def _differing(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    found = {name: value for name, value in these.items() if those.get(name) != value}
    return ", ".join(f"{name}={value!r}" for name, value in found.items()) or "fewer arguments"
