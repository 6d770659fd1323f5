"""What one rank has recorded so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.iteration import PhasePlace
from pytest_distbench.records.kinds import METRIC_KINDS, Better, Reduce
from pytest_distbench.records.metric import (
    PHASE,
    Bound,
    Observation,
    Scalar,
    metric_key,
)
from pytest_distbench.worker.checks import check_choice, check_scalars, check_text, check_values, refuse


class Notebook:
    """What one rank has recorded so far, each metric once, in the order they were noted.

    A script has loops of its own: numbers that it records under one name again and again are a series, which is noted
    when it is over.
    """

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.is_of_script = False
        self._keys: set[str] = set()
        self._collected: dict[str, tuple[str, list[float], dict[str, Any]]] = {}

    def expect_new(self, name: str, at: Mapping[str, Scalar]) -> str:
        """The key of a metric that is about to be measured, and was not before."""
        key = metric_key(name, dict(at))
        if key in self._keys:
            raise RecordingError(
                f"{key!r} is recorded twice: give each its own name or point (at=..., or with rank.point(...)); a "
                "phase in a loop of rank.timed or of a goal is one series"
            )
        return key

    def note(
        self,
        name: str,
        value: object,
        *,
        unit: str = "",
        better: Better = "info",
        reduce: Reduce | None = None,
        at: Mapping[str, Scalar],
        identity: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
        witnesses: Mapping[str, list[float]] | None = None,
        bounds: Sequence[Bound] = (),
        place: PhasePlace | None = None,
    ) -> None:
        """Check and keep one observation: it can be merged over ranks, judged and stored later.

        Arguments as of ``rank.record``, the bounds in the unit; and where a phase lies in its loop.
        """
        call = f"record({show(name)})"
        unit = check_text(call, "unit", unit)
        point, identity = check_scalars(call, "at", at), check_scalars(call, "identity", identity)
        facts = check_scalars(call, "facts", facts)
        key = self.expect_new(name, point)
        kind = METRIC_KINDS[check_choice(call, "better", better, METRIC_KINDS)]
        if reduce is not None:
            check_choice(call, "reduce", reduce, get_args(Reduce))
        values, is_series = check_values(f"record({key!r})", value)
        if self.is_of_script and values and not is_series:
            given = {"unit": unit, "reduce": reduce, "at": point, "identity": identity, "facts": facts}
            self._collect(key, name, values[0], {**given, "better": better, "bounds": bounds, "place": place})
            return
        is_own_clock = bool(witnesses) or name.startswith(PHASE)
        why = "" if is_own_clock else kind.why_impossible(values, unit, is_series=is_series)
        if why and (kind.is_judged or bounds):
            raise RecordingError(f"record({key!r}): {why}: was the time read, and in this order? (info is not judged)")
        if kind.is_of_training:
            _check_training(f"record({key!r}, better={better!r})", better, values, identity, is_series=is_series)
            for fact in facts.keys() & {"every", "evaluation_samples"}:  # the rules for trainings would miss it
                refuse(call, f"{fact} in identity=, as it defines the number", f"facts={dict(facts)}")
        self.observations.append(
            Observation(
                name=name,
                unit=unit,
                better=str(better),
                reduce=reduce or kind.reduce,
                values=values,
                is_series=is_series,
                at=point,
                identity=identity,
                facts=facts,
                witnesses=dict(witnesses or {}),
                bounds=list(bounds),
                place=place,
            )
        )
        self._keys.add(key)

    def finish(self) -> None:
        """Note the series of a script."""
        self.is_of_script = False
        for name, values, options in self._collected.values():
            is_series = len(values) > 1 or METRIC_KINDS[options["better"]].shape == "series"
            self.note(name, values if is_series else values[0], **options)

    def _collect(self, key: str, name: str, value: float, options: dict[str, Any]) -> None:
        _, values, known = self._collected.setdefault(key, (name, [], options))
        if known != options:
            raise RecordingError(
                f"{key!r} is recorded with {_differing(options, known)}, and with {_differing(known, options)} before"
            )
        values.append(value)


def _differing(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    found = {name: value for name, value in these.items() if value and those[name] != value}
    return ", ".join(f"{name}={value!r}" for name, value in found.items()) or "fewer arguments"


def _check_training(
    call: str, better: Better, values: list[float], identity: Mapping[str, Scalar], *, is_series: bool
) -> None:
    """Refuse what the rules for trainings could not judge later."""
    kind = METRIC_KINDS[better]
    if is_series != (kind.shape == "series"):
        wanted, got = ("a series, one value per step", "one number") if not is_series else ("one number", "a series")
        raise RecordingError(f"{call}: wanted {wanted}, got {got}")
    if kind.rule == "steps":
        if any(v < 0 or v % 1 for v in values):
            refuse(call, "whole steps, 0 or more", values[0])
        every = identity.get("every", 1)
        if isinstance(every, (bool, str)) or not every > 0:
            refuse(call, "every in identity to be the steps between evaluations, above 0", every)
    if kind.rule == "floor" and "evaluation_samples" in identity:
        samples = identity["evaluation_samples"]
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            refuse(call, "evaluation_samples in identity to be a whole number, at least 1", samples)
        if any(not 0 <= v <= 1 for v in values):
            raise RecordingError(f"{call}: {values[0]:g} is no share of {samples} samples; wanted 0 to 1")
