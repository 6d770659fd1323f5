"""The numbers of a test as named texts, for the reports of JUnit, JSON, HTML and Allure.

``distbench.latency[message_bytes=4096]`` is ``33.73 ms, regressed: +60.0 % (threshold +10%), baseline 21.08 ms``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from pytest_distbench.machine.secrets import mask_text
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.texts import change, current, escape, quantity, reference, threshold

PREFIX = "distbench."
MOST = 60
"""Of one test. Viewers show them all in one list: of a long sweep what did not stay the same comes before the rest."""

_LONGEST_NAME = 150
_LONGEST_TEXT = 250


def number_properties(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Name and text of every number of the cases of a test, as many as fit, without secrets."""
    found = [(rank, _property(_name_of(case, metric), text)) for case in cases for rank, metric, text in _numbers(case)]
    found += [(0, _property(_name_of(c, "advisory"), c.headline)) for c in cases if c.outcome == "advisory"]
    if len(found) <= MOST:
        return [text for _, text in found]
    kept = sorted(sorted(range(len(found)), key=lambda i: found[i][0])[: MOST - 1])
    left_out = f"{len(found) - len(kept)} numbers are left out; --distbench-json FILE has all"
    return [*(found[i][1] for i in kept), (f"{PREFIX}more", left_out)]


def _numbers(case: CaseResult) -> Iterator[tuple[int, str, str]]:
    """How much each number matters (0: most), its metric, and its text."""
    for verdict in case.verdicts:
        rank = (
            2
            if not verdict.is_judged
            else 1
            if verdict.kind in ("unchanged", "new") and verdict.code != "numerics"
            else 0
        )
        yield rank, verdict.metric, _text(case, verdict)
    if not case.verdicts and case.launches[-1].outcome == "passed":
        values: dict[tuple[str, str], list[float]] = {}
        for measurement in (m for launch in case.launches for m in launch.measurements if m.value is not None):
            values.setdefault((measurement.key, measurement.unit), []).append(measurement.value or 0.0)
        for (metric, unit), of_launches in values.items():
            yield 2, metric, quantity(median(of_launches), unit)


def _text(case: CaseResult, verdict: Finding) -> str:
    value = "" if verdict.current is None else current(verdict)
    if not verdict.is_judged:
        return value or "no value"
    answer = "no baseline" if verdict.kind == "new" else verdict.kind
    moved = change(verdict) if change(verdict) != verdict.kind else ""
    most = threshold(verdict)
    allowed = {"": "", "exact": "(exact)"}.get(most, f"(threshold {most})")
    told = " ".join(filter(None, [moved, allowed])) or verdict.reason
    compared = f"baseline {reference(verdict)}" if verdict.baseline is not None else ""
    stored = f"{case.update} baseline" if case.is_written else ""
    return ", ".join(filter(None, [value, f"{answer}: {told}" if told else answer, compared, stored]))


def _name_of(case: CaseResult, metric: str) -> str:
    """The metric, after the name of its run if that has one that says more."""
    run = case.case.label
    return metric if run in ("", metric) else f"{run}.{metric}"


def _property(name: str, text: str) -> tuple[str, str]:
    return f"{PREFIX}{_bounded(name, _LONGEST_NAME)}", _bounded(text, _LONGEST_TEXT)


def _bounded(text: str, most: int) -> str:
    text = escape(mask_text(text))
    return text if len(text) <= most else f"{text[: most - 3]}..."
