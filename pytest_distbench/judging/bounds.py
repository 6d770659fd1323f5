"""Verdicts on the bounds of a case's metrics, which no baseline can change. Pure, no I/O.

A metric that violates a bound fails with the code *bound*, whatever its baseline says. A noisy one is measured again
first: the median over launches decides, of at least three if so many may be made. A metric that keeps to its bounds has
the verdict of the comparison with its baseline; without a baseline it is *within-bound*.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Container, Mapping, Sequence

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.terms import by_metric, message_bytes
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import (
    LINK_PEAK,
    SAID,
    AskedBound,
    Bound,
    Sample,
    Side,
    metric_key,
    metric_name,
    terms_of,
)
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.units import GIGABYTE, convert, format_quantity, is_duration, is_rate, why_impossible

FEWEST = 3  # launches of a noisy metric that violated its bound: the median of fewer is no better than one of them

_RATE_UNIT = "GB/s"
_SHARE = "busbw_share"  # bus bandwidth over the peak of the link, if that is known
_SIDES: dict[int, Side] = {1: "most", -1: "least"}  # by the sign of a kind: what is worse is bounded
_SIGNS: dict[Side, str] = {"most": "<=", "least": ">="}
_WORDS: dict[Side, str] = {"most": "at most", "least": "at least"}
_MOST_NAMES = 20

_MOST_EFFICIENT = 1.05  # of an efficiency in each launch: more than that is no noise

Measured = Mapping[str, Sequence[Sample]]  # metric key -> its measurement in each launch


_Rate = tuple[float, str]  # a rate computed from a time: the seconds at which it would be 1, and its unit


def plausible(metric: Sample) -> list[Bound]:
    """At most 1.05 for a derived number named ``efficiency``: many workers are not faster than one; else empty."""
    words = metric.name.lower().replace("_", " ").split()
    if metric.better != "higher" or metric.unit or words[-1:] != ["efficiency"]:
        return []
    why = "more than 100 % efficiency is not possible; does each worker train on a full batch of its own?"
    return [Bound(side="most", value=_MOST_EFFICIENT, where="distbench.judge(...)", is_default=True, suspicion=why)]


_LOWER = frozenset({"time", "latency", "duration", "delay", "stall", "loss", "error", "perplexity", "memory"})
_HIGHER = frozenset({
    "throughput", "bandwidth", "accuracy", "efficiency", "speedup", "goodput", "busbw", "algbw", "mfu", "tps", "sps",
})  # fmt: skip
_LEARNED = frozenset({
    "loss", "losses", "nll", "entropy", "error", "perplexity", "ppl", "accuracy", "acc", "precision", "recall", "auc",
    "bleu", "rouge", "wer", "score", "reward", "checksum", "digest", "hash", "norm", "weights", "f",
})  # fmt: skip
"""Nouns of what a training computes, and of its state. A count of parameters, also exact, is not learned."""
_QUALIFIERS = frozenset({"top", "k", "mean", "final", "last", "first", "best", "train", "val", "test", "eval"})
_AFTER_NOUN = re.compile(r"_(?:to|per|at|of|in|on|by|with|over)_.*")
_WORD = re.compile(r"[a-z]+")


def why_implausible(name: str, unit: str, better: Better) -> str:
    """Why the direction of a metric looks wrong, in a clause, or "".

    The noun of the name counts, its last word before ``_to_`` or ``_per_``.
    """
    sign = METRIC_KINDS[better].sign
    if not sign:
        return ""
    if sign < 0 and is_duration(unit):
        return f"it is a time ({unit}), and a longer one would count as an improvement"
    if sign > 0 and is_rate(unit):
        return f"it is a rate ({unit}), and a lower one would count as an improvement"
    noun = _noun(name)
    if sign < 0 and noun in _LOWER:
        return f"{'an' if noun[0] in 'aeo' else 'a'} {noun} that rises would count as an improvement"
    if sign > 0 and noun in _HIGHER:
        return f"{'an' if noun[0] in 'aeo' else 'a'} {noun} that falls would count as an improvement"
    return ""


def is_learned(name: str) -> bool:
    """Whether a metric's name says that a training computes it: a loss, an accuracy, a checksum of its weights."""
    return _noun(name, _QUALIFIERS) in _LEARNED


def _noun(name: str, qualifiers: Container[str] = ()) -> str:
    words = [word for word in _WORD.findall(_AFTER_NOUN.sub("", name.lower())) if word not in qualifiers]
    return words[-1] if words else ""


def judge_bounds(
    findings: Sequence[Finding],
    launches: Sequence[LaunchRecord],
    asked: Sequence[AskedBound],
    *,
    baseline: Sequence[LaunchRecord] = (),
) -> list[Finding]:
    """Apply bounds to the findings of the comparison with a baseline.

    ``asked`` are the bounds of the test and of its baseline file; the launches hold those that came with the numbers.
    Tighter bounds in ``baseline`` count too. Bounds of unknown metrics are skipped, see :func:`check_measured`.
    """
    measured, theirs = by_metric(launches), by_metric(baseline)
    bounds = {key: [*found[0].bounds, *_tighter(theirs.get(key, ()), found[0])] for key, found in measured.items()}
    for one in asked:
        for key, bound in _resolve(one, measured):
            bounds[key] = [b for b in bounds[key] if not (b.is_default and b.side == bound.side)]
            bounds[key].append(bound)
    judged = {f.metric for f in findings}
    of_finding: dict[str, dict[str, list[Bound]]] = {}
    for key, found in bounds.items():
        if found := [bound for bound in found if not bound.suspicion]:
            of_finding.setdefault(key if key in judged else measured[key][0].key_over_seeds, {})[key] = found
    made = [_judge(f, of_finding[f.metric], measured) if f.metric in of_finding else f for f in findings]
    made = [_judge_suspicions(f, bounds.get(f.metric, []), measured) for f in made]
    missed = {name: one for one in asked for name in _missed_goals(one[0], measured)}
    for i, finding in enumerate(made):
        if (goal := missed.get(finding.name)) is not None:
            metric, value, where = goal
            reason = f"not reached: no {metric}, bound: {value} ({where})"
            made[i] = replace(finding, code="bound", reason=reason, is_open=False)
    return made


def check_measured(asked: Sequence[AskedBound], launches: Sequence[LaunchRecord], largest_message: int | None) -> None:
    """Refuse bounds of metrics that none of the launches measured: they would never fail.

    Bounds of messages larger than ``largest_message`` bytes, which sweeps leave out, pass.
    """
    measured = by_metric(launches)
    for metric, _, where in asked:
        if largest_message is not None and (message_bytes(metric) or 0) > largest_message:
            continue
        if _matches(metric, measured) or _missed_goals(metric, measured):
            continue
        names = [*measured, *(rate for key in measured for rate in _rates(measured[key][0]))]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise ConfigurationError(
            f"the bound of {metric!r} ({where}) names no metric that was judged; "
            f"the metrics are {', '.join(names[:_MOST_NAMES]) or 'no metrics'}{more}"
        )


def carry_over(verdict: Finding, own: Finding | None) -> Finding:
    """The verdict of another comparison of the same launches, with what bounds decided in the verdict ``own``."""
    if own is not None and own.code == "bound":
        return replace(verdict, code=own.code, reason=own.reason, bounds=own.bounds)
    return verdict if own is None or not own.bounds else _keep(verdict, own.bounds, is_open=verdict.is_open)


def _judge(finding: Finding, bounds: Mapping[str, Sequence[Bound]], measured: Measured) -> Finding:
    every = list(dict.fromkeys(bound for found in bounds.values() for bound in found))
    is_undecided = False
    for key, found in bounds.items():
        values, is_noisy = [m.value for m in measured[key]], measured[key][0].is_noisy
        asks = is_noisy and len(values) < FEWEST
        for bound in found:
            # Of a noisy metric the median over launches decides, of others the first value that is beyond.
            value = next((v for v in values if not bound.holds(v)), values[0])
            if is_noisy:
                worst = math.inf if bound.side == "most" else -math.inf
                middle = statistics.median(worst if v is None else v for v in values)
                value = None if math.isinf(middle) else middle
            if not bound.holds(value) or (value is not None and value < 0 and why_impossible(value, finding.unit)):
                reason = _reason(value, bound, measured[key], finding)
                return replace(finding, bounds=every, code="bound", reason=reason, is_open=asks)
            is_undecided = is_undecided or (asks and not all(map(bound.holds, values)))
    return _keep(finding, every, is_open=finding.is_open or is_undecided)


def _tighter(baseline: Sequence[Sample], current: Sample) -> list[Bound]:
    """Bounds that the baseline's launches recorded and that this run has loosened or left out, with a note of that."""
    found = []
    for bound in (bound for m in baseline[:1] for bound in m.bounds if m.unit == current.unit):
        own = [b.value for b in current.bounds if b.side == bound.side and not b.is_default]
        if not bound.is_default and not any(bound.holds(value) for value in own):
            now = f"{_WORDS[bound.side]} {format_quantity(own[0], current.unit)}" if own else "none"
            found.append(replace(bound, where=f"{bound.where}, the other revision's; the candidate's: {now}"))
    return found


def _judge_suspicions(finding: Finding, bounds: Sequence[Bound], measured: Measured) -> Finding:
    """Call a number invalid that violates a default bound in every launch, which noise alone cannot explain."""
    for bound in bounds:
        values = [m.value for m in measured[finding.metric] if m.value is not None]
        if not bound.suspicion or finding.is_failure or not values or any(map(bound.holds, values)):
            continue
        if len(values) < FEWEST:
            return replace(finding, is_open=True)
        now = f"{format_quantity(min(values), finding.unit)} or more in each of {len(values)} launches"
        return replace(finding, code="invalid-value", reason=f"{now}: {bound.suspicion}", is_open=False)
    return finding


def _keep(verdict: Finding, bounds: Sequence[Bound], *, is_open: bool) -> Finding:
    code = "within-bound" if verdict.kind == "new" else verdict.code
    reason = verdict.reason if code == verdict.code and METRIC_KINDS[verdict.better].is_judged else ""
    return replace(verdict, bounds=list(bounds), code=code, reason=reason, is_open=is_open)


def _reason(value: float | None, bound: Bound, launches: Sequence[Sample], verdict: Finding) -> str:
    measurement = next((m for m in launches if m.value == value), launches[0])
    unit = measurement.unit
    now = "no value" if value is None else format_quantity(value, unit)
    which = (
        f" of seed {measurement.at['seed']}" if measurement.key != verdict.metric and "seed" in measurement.at else ""
    )
    limit = f"{_WORDS[bound.side]} {format_quantity(bound.value, unit)}"
    rate = f", that is {bound.rate}" if bound.rate else ""
    explanation = f": {measurement.facts[SAID]}" if SAID in measurement.facts else ""
    return f"{now}{which}, bound: {limit}{rate} ({bound.where}){explanation}"


def _resolve(asked: AskedBound, measured: Measured) -> list[tuple[str, Bound]]:
    found = []
    metric, written, where = asked
    name = f"the bound of {metric!r} ({where})"
    for key, rate in _matches(metric, measured):
        first = measured[key][0]
        for given, number, unit in terms_of(written):
            side = given or ("least" if rate else _SIDES.get(METRIC_KINDS[first.better].sign))
            if side is None:
                raise ConfigurationError(
                    f"{name}: better={first.better!r} does not say which side is worse: write '<= {written}' or "
                    f"'>= {written}'"
                )
            try:
                value = convert(number, unit, rate[1] if rate else first.unit)
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from None
            if rate:  # a rate of at least so much is a time of at most so much
                if not value > 0:
                    raise ConfigurationError(f"{name}: a rate is above 0, found {written!r}")
                text = f"{metric_name(metric)} {_SIGNS[side]} {format_quantity(value, rate[1])}"
                time_side: Side = "most" if side == "least" else "least"
                found.append((key, Bound(side=time_side, value=rate[0] / value, where=where, rate=text)))
            else:
                found.append((key, Bound(side=side, value=value, where=where)))
    return found


def _matches(metric: str, measured: Measured) -> list[tuple[str, _Rate | None]]:
    """(key, None) for each metric that a bound names, or else (key, rate) for each from which that rate is computed."""
    named = [(key, None) for key, found in measured.items() if metric in (key, found[0].name)]
    return [*named] or [
        (key, rate)
        for key, found in measured.items()
        for name, rate in _rates(found[0]).items()
        if metric in (name, metric_name(name))
    ]


def _missed_goals(metric: str, measured: Measured) -> set[str]:
    """Names of metrics ``steps_to_X`` whose goal was missed, if ``metric`` is the ``time_to_X`` of that goal."""
    return {
        found[0].name
        for found in measured.values()
        if found[0].name.startswith("steps_to_")
        and any(m.value is None for m in found)
        and metric in (name := found[0].name.replace("steps_to_", "time_to_", 1), metric_key(name, found[0].at))
    }


def _rates(measurement: Sample) -> dict[str, _Rate]:
    factor, size = measurement.facts.get("busbw_factor"), measurement.at.get("message_bytes")
    if measurement.unit != "s" or not isinstance(factor, int | float) or not isinstance(size, int | float):
        return {}
    rates = {"algbw": (size / GIGABYTE, _RATE_UNIT), "busbw": (size * factor / GIGABYTE, _RATE_UNIT)}
    peak = measurement.facts.get(LINK_PEAK)
    if isinstance(peak, int | float) and peak > 0:
        rates[_SHARE] = (size * factor / GIGABYTE / peak, "")
    return {metric_key(name, measurement.at): rate for name, rate in rates.items() if rate[0]}
