"""Doubts: what a run says of its own rules, a line each: which could not have failed, and what moved as a whole."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_distbench.judging.doubts import common_movement, is_learned, long_tails, out_of_reach
from pytest_distbench.records.fingerprint import TRAINING_STEP
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.texts.layout import Line
from pytest_distbench.report.texts.words import change, metric_text
from pytest_distbench.units import format_change

TOO_GOOD = 5
"""Code rarely becomes so many times as fast by itself."""

_NUMBER = re.compile(r"[+-]?[\d.,]+ %")


def doubt_lines(results: Sequence[CaseResult]) -> list[Line]:
    """What casts doubt on the answers of a run as a whole; nothing where nothing does."""
    return [
        *_movement(results),
        *_too_good(results),
        *_long_tails(results),
        *_out_of_reach(results),
        *_tolerances_out_of_sight(results),
        *_unconfirmed(results),
    ]


def unjudged_learning(results: Sequence[CaseResult]) -> list[Line]:
    """Of trainings of which nothing that they learn is judged, such as a loss; once for all.

    One trains whose optimizer steps in the iteration, or the training step, that the fingerprint describes.
    """
    found = [result for result in results if _steps(result) and not _may_judge_learning(result)]
    if not found:
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    how = (
        'print its loss, and give read={"loss_curve": stdout("loss " + NUMBER, better="curve", first=10)}'
        if TRAINING_STEP in _steps(found[0])
        else 'keep its losses, and call rank.record("loss_curve", losses[:10], better="curve") after the loop'
    )
    return [Line(f"{found[0].case.title}{more}: trains, and nothing judges whether it learns; {how}")]


def _steps(result: CaseResult) -> list[str]:
    """What of a case has steps of an optimizer. An elastic job's learning is judged otherwise."""
    last = result.launches[-1]
    is_job = last.elastic is not None or last.pool is not None
    return [key for key, seen in last.fingerprints.items() if seen.optimizer_steps and not is_job]


def _may_judge_learning(result: CaseResult) -> bool:
    """Whether anything is judged that a training learns: by its kind, or by what its name says."""
    judged = [m for m in result.launches[-1].measurements if m.is_judged or m.bounds]
    return any(METRIC_KINDS[m.better].is_of_training or is_learned(m.name) for m in judged)


def _too_good(results: Sequence[CaseResult]) -> list[Line]:
    """Improvements that are rather another number: a unit, a pattern, or where the clock begins."""
    found = [
        f"{result.case.title} {metric_text(verdict)} {change(verdict)}"
        for result in results
        for verdict in result.verdicts
        if verdict.kind == "improved" and verdict.ratio and not 1 / TOO_GOOD < verdict.ratio < TOO_GOOD
    ]
    if not found:
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    asked = "is it the same number? A unit, a pattern that reads it, or what the clock spans may have changed"
    return [Line(f"? {found[0]}{more}: better by {TOO_GOOD} times or more; {asked}", "doubt")]


def _movement(results: Sequence[CaseResult]) -> list[Line]:
    found = common_movement(results)
    if found is None:
        return []
    span = f"{found.least:.2f} to {found.most:.2f} times"
    word = "slower" if found.is_slower else "faster"
    line = (
        f"all {found.cases} cases with clocks are {word} than their baselines, by {span}: that speaks of the machine, "
        "its software or the baselines, not of one change; distbench doctor looks at the machine, --distbench-against "
        "REF compares on the spot"
    )
    return [Line(line)]


def _long_tails(results: Sequence[CaseResult]) -> list[Line]:
    """Iterations that became slow, and that no verdict contains; one line, of the longest."""
    found = [(now, then, f"{r.case.title} {metric_text(v)}") for r in results for v, now, then in long_tails(r)]
    if not found:
        return []
    now, then, metric = max(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    line = (
        f"? {metric}{more}: some iterations take {now:.1f} times as long as what is judged, the fast side ({then:.1f} "
        'times in the baseline); mode="batch" of rank.timed judges the mean of twenty'
    )
    return [Line(line, "doubt")]


def _out_of_reach(results: Sequence[CaseResult]) -> list[Line]:
    """A line for each reason, with the first metric it holds for."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for result in results:
        for verdict, why in out_of_reach(result):
            groups.setdefault(_NUMBER.sub("", why), []).append((f"{result.case.title} {metric_text(verdict)}", why))
    return [
        Line(
            f"? {len(found)} metric{'s' * (len(found) > 1)} could not have turned red: "
            f"{found[0][0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {found[0][1]}",
            "doubt",
        )
        for found in groups.values()
    ]


def _tolerances_out_of_sight(results: Sequence[CaseResult]) -> list[Line]:
    """One line for all clocks whose tolerance the screening would not have seen, with what it would."""
    found = [(v.detectable or 0.0, r, v) for r in results for v in r.verdicts if v.kind == "unseen" and v.is_noisy]
    if not found:
        return []
    cases = {(result.case.test, result.case.key) for _, result, _ in found}
    (least, *_), (most, result, verdict) = min(found, key=lambda f: f[0]), max(found, key=lambda f: f[0])
    span = format_change(1 + least) if len(found) == 1 else f"{format_change(1 + least)} to {format_change(1 + most)}"
    metrics = f"{len(found)} metric{'s' * (len(found) > 1)} of {len(cases)} case{'s' * (len(cases) > 1)}"
    looked_into = f"what would have been looked into: {span} (most: {result.case.title} {metric_text(verdict)})"
    line = (
        f"? {metrics} would not have shown a slowdown of their tolerance; {looked_into}; --distbench-confirm=always "
        "runs all cases in turns"
    )
    return [Line(line, "doubt")]


def _unconfirmed(results: Sequence[CaseResult]) -> list[Line]:
    """Why cases in doubt were not decided in turns, a line for each reason."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if result.unconfirmed:
            groups.setdefault(result.unconfirmed, []).append(result.case.title)
    return [
        Line(f"? not decided in turns: {titles[0]}{f' and {len(titles) - 1} more' if len(titles) > 1 else ''}: {why}")
        for why, titles in groups.items()
    ]
