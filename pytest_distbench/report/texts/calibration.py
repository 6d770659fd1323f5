"""The findings of ``distbench calibrate`` as text: per case, the noisiest metric first, with what to do about it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_distbench.judging.stats import BLIND_LIMIT
from pytest_distbench.records.calibration import Calibration, CaseNoise, MetricNoise
from pytest_distbench.records.metric import metric_name
from pytest_distbench.report.texts.layout import layout
from pytest_distbench.report.texts.words import quantity

_SHOWN_METRICS = 5
_FROM_ITERATIONS = 0.3
"""From this share of the variance on longer launches are worth their time."""
_ABSURD = 10.0


def calibration_lines(found: Calibration, *, show_all: bool) -> list[str]:
    """Everything, the noisiest case first."""
    metrics = [metric for case in found.cases for metric in case.metrics]
    first = next(iter(metrics[0].detectable))
    cases = sorted(found.cases, key=lambda case: -case.metrics[0].detectable[first])
    torch = found.software.get("torch", "?")
    measured = f"{len(metrics)} {_plural('metric', len(metrics))} of {len(cases)} {_plural('case', len(cases))}"
    error_rate = f"false alarms: {found.alpha * len(metrics):.1%} a run, {found.alpha:.2g} a metric"
    lines = [
        f"{found.platform}, torch {torch}: {measured} in {found.duration_s:.0f} s",
        f"columns like 10+10: smallest slowdown found nine times in ten, by launches stored + new; {error_rate}",
        "",
    ]
    for case in cases:
        lines += [*_case_lines(case, found.wanted_tolerance, first=first, show_all=show_all), ""]
    return [*lines, *_split_halves(cases), *_tolerance(metrics, found.wanted_tolerance)]


def _case_lines(case: CaseNoise, tolerance: float, *, first: str, show_all: bool) -> list[str]:
    launches = "+".join(map(str, case.rounds))
    shown = case.metrics if show_all else case.metrics[:_SHOWN_METRICS]
    rows = [
        (
            f"  {metric.metric}",
            quantity(metric.median, metric.unit),
            f"{metric.sigma:.1%}",
            f"{metric.drift:.1%}" if metric.drift else "-",
            *(_slowdown(size) for size in metric.detectable.values()),
            _holds(metric, first),
        )
        for metric in shown
    ]
    header = ("  metric", "median", "noise", "drift", *case.metrics[0].detectable, f"holds {tolerance:.0%}")
    lines = [f"{_name(case)}  {launches} launches, {case.launch_s:.2f} s each", *layout(header, rows)]
    if len(shown) < len(case.metrics):
        below = case.metrics[len(shown)].detectable[first]
        lines.append(f"  {len(case.metrics) - len(shown)} more, {_slowdown(below)} and less (--all shows them)")
    return [*lines, *_longer(case, first), *_proposal(case)]


def _name(case: CaseNoise) -> str:
    return f"{case.case.test}[{case.case.name}]" if case.case.name else case.case.test


def _slowdown(size: float) -> str:
    return f"+{size:.1%}" if size < 0.1 else f"+{size:.0%}" if size < _ABSURD else f"> +{_ABSURD:.0%}"


def _holds(metric: MetricNoise, first: str) -> str:
    if metric.launches_needed is None:
        return "no"
    default = int(first.partition("+")[2])
    return "yes" if metric.launches_needed <= default else f"with {metric.launches_needed}"


def _longer(case: CaseNoise, first: str) -> list[str]:
    """What four times the iterations would bring, for the metric they would help most; a line only if they would."""
    known = [(metric.iterations_share or 0.0, metric) for metric in case.metrics]
    share, metric = max(known, key=lambda pair: pair[0])
    if share < _FROM_ITERATIONS or metric.drift:
        return []
    size = math.expm1(math.log1p(metric.detectable[first]) * math.sqrt(1 - 0.75 * share))
    helped = sum(other >= _FROM_ITERATIONS and not m.drift for other, m in known)
    change = f"{metric.metric} from {_slowdown(metric.detectable[first])} to about {_slowdown(size)}"
    return [f"  longer launches help {helped} of {len(known)}: four times the iterations would bring {change}"]


def _proposal(case: CaseNoise) -> list[str]:
    """A tolerance per name of a metric, over its points; points that are blind are left to their verdicts."""
    names: dict[str, list[float]] = {}
    for metric in case.metrics:
        names.setdefault(metric_name(metric.metric), []).append(metric.tolerance)
    known = {name: [t for t in values if t <= BLIND_LIMIT] for name, values in names.items()}
    seeing = {name: max(values) for name, values in known.items() if values}
    blind = sum(t > BLIND_LIMIT for values in names.values() for t in values)
    lines = []
    if len(seeing) == 1 and len(names) == 1:
        lines.append(f"  proposed: @pytest.mark.distbench(tolerance={seeing.popitem()[1]:g})")
    elif seeing:
        listed = ", ".join(f'"{name}": {value:g}' for name, value in seeing.items())
        lines.append(f"  proposed: @pytest.mark.distbench(tolerance={{{listed}}})")
    if blind:
        lines.append(
            f"  {blind} {_plural('metric', blind)}: only more than a doubling would be seen; expect '?', inconclusive"
        )
    return lines


def _split_halves(cases: Sequence[CaseNoise]) -> list[str]:
    count = sum(case.comparisons for case in cases)
    if not count:
        return ["A/A: too few launches to judge one half against the other", ""]
    alarms = [f"{_name(case)} {metric}" for case in cases for metric in case.alarms]
    head = "A/A: the later launches judged against the earlier ones, and the reverse, as a run would: "
    lines = [f"{head}{len(alarms)} false {_plural('alarm', len(alarms))} in {count} comparisons"]
    lines += [f"! {alarm}" for alarm in alarms]
    if alarms:
        lines.append(
            "  the machine changed in between: run 'distbench doctor', give these a tolerance, or compare on the spot"
        )
    return [*lines, ""]


def _tolerance(metrics: Sequence[MetricNoise], wanted: float) -> list[str]:
    first = next(iter(metrics[0].detectable))
    default = int(first.partition("+")[2])
    now = [m for m in metrics if m.launches_needed is not None and m.launches_needed <= default]
    later = [m.launches_needed for m in metrics if m.launches_needed is not None and m.launches_needed > default]
    never = [m for m in metrics if m.launches_needed is None]
    counted = f"{len(now)} of {len(metrics)} {_plural('metric', len(metrics))}"
    lines = [f"a tolerance of {wanted:.0%} holds here for {counted} with {default} launches"]
    if later:
        span = f"{min(later)} to {max(later)}" if min(later) < max(later) else f"{max(later)}"
        lines += [
            f"? for {len(later)} more with {span} launches and a baseline of as many",
            f"  (--distbench-max-launches {max(later)}; --distbench-update --distbench-launches {max(later)})",
        ]
    drifting = sum(m.drift > 0 for m in never)
    if drifting:
        lines += [
            f"? not for {drifting} that move from round to round, which more launches do not average out:",
            "  compare on the spot, or measure on a machine that does nothing else",
        ]
    if len(never) > drifting:
        lines += [
            f"? not for {len(never) - drifting} that are too noisy, be the launches a hundred or any number:",
            "  look at 'distbench doctor', measure on a quieter machine, or accept the proposed tolerance",
        ]
    return lines


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
