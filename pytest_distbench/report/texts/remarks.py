"""What a run says of its own rules, a line each: what could not have failed, what moved together, what was planted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_distbench.judging.outcome import detection, planted_ratio, telling
from pytest_distbench.judging.sensitivity import common_movement, is_learned, out_of_reach
from pytest_distbench.judging.words import metric_text
from pytest_distbench.records.iteration import TRAINING_STEP
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import CaseResult, Control
from pytest_distbench.report.texts import Line, layout
from pytest_distbench.units import format_change

_COLUMNS = ("", "test", "metric", "slowdown", "injected", "measured", "launches", "time")


def control_lines(results: Sequence[CaseResult]) -> list[Line]:
    """A row for each case, the last line counts them; nothing where nothing was planted."""
    planted = [(r, r.control) for r in results if r.control is not None]
    tried = [(r, control) for r, control in planted if not control.why_not]
    lines = []
    if tried:
        rows = layout(_COLUMNS, [_row(result, control) for result, control in tried], left=4)
        severities = ["plain", *("plain" if control.found else "doubt" for _, control in tried)]
        lines += [Line(row, severity) for row, severity in zip(rows, severities, strict=True)]  # type: ignore[arg-type] # they are literals
    groups: dict[str, list[str]] = {}
    for result, control in planted:
        if control.why_not:
            groups.setdefault(control.why_not, []).append(result.case.title)
    lines += [Line(f"? nothing injected in {_first(titles)}: {why}", "doubt") for why, titles in groups.items()]
    lines += [
        Line(
            f"? not delayed in {r.case.title}: {', '.join(c.left_out)}: the script measures these times itself",
            "doubt",
        )
        for r, c in planted
        if c.left_out
    ]
    if tried:
        lines.append(_count([control for _, control in tried]))
    return lines


def _first(titles: Sequence[str]) -> str:
    return f"{titles[0]}{f' and {len(titles) - 1} more' if len(titles) > 1 else ''}"


def _count(controls: Sequence[Control]) -> Line:
    found = sum(bool(control.found) for control in controls)
    chosen = [control.share for control in controls if control.is_chosen]
    of = f"{chosen[0] * 100:.3g} %" if chosen else "their tolerance (injected: a third more)"
    cases = f"case{'s' * (len(controls) != 1)}"
    text = f"{found} of {len(controls)} {cases} detected a slowdown of {of}"
    return Line(text, "plain" if found == len(controls) else "doubt")


def _row(result: CaseResult, control: Control) -> tuple[str, ...]:
    shown = telling(control)
    more = f" and {len(control.verdicts) - 1} more" if len(control.verdicts) > 1 else ""
    return (
        " " if control.found else "?",
        result.case.title,
        f"{metric_text(shown)}{more}",
        detection(control),
        format_change(planted_ratio(control, shown)),
        format_change(shown.ratio) if shown.ratio is not None else "-",
        str(control.launches),
        f"{control.took_s:.1f} s",
    )


_NUMBER = re.compile(r"[+-]?[\d.,]+ %")


def doubt_lines(results: Sequence[CaseResult]) -> list[Line]:
    """What casts doubt on the answers of a run as a whole; nothing where nothing does."""
    return [
        *_movement(results),
        *_out_of_reach(results),
        *_unconfirmed(results),
    ]


def unjudged_learning(results: Sequence[CaseResult]) -> list[Line]:
    """Of trainings of which nothing that they learn is judged, such as a loss; once for all.

    One trains whose optimizer steps in the iteration, or the training step, that the fingerprint describes. On the
    backend ``fake`` no loss means anything.
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
    last = result.launches[-1]
    is_job = last.elastic is not None or last.pool is not None
    is_left_out = is_job or result.case.conditions.fake_rank is not None
    return [key for key, seen in last.fingerprints.items() if seen.totals.get("optimizer_steps") and not is_left_out]


def _may_judge_learning(result: CaseResult) -> bool:
    """Whether anything is judged that a training learns: by its kind, or by what its name says."""
    judged = [m for m in result.launches[-1].measurements if m.is_judged or m.bounds]
    return any(METRIC_KINDS[m.better].is_of_training or is_learned(m.name) for m in judged)


def _movement(results: Sequence[CaseResult]) -> list[Line]:
    found = common_movement(results)
    if found is None:
        return []
    span = f"{found.least:.2f} to {found.most:.2f} times"
    word = "slower" if found.is_slower else "faster"
    line = (
        f"all {found.cases} cases with timings are {word} than their baselines, by {span}: the cause is the machine, "
        "its software or the baselines, not one change; distbench doctor checks the machine, --distbench-against REF "
        "compares by A/B"
    )
    return [Line(line)]


def _out_of_reach(results: Sequence[CaseResult]) -> list[Line]:
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


def _unconfirmed(results: Sequence[CaseResult]) -> list[Line]:
    """Why suspicious cases were not confirmed by A/B, a line for each reason, numbers aside."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.unconfirmed:
            groups.setdefault(re.sub(r"\d", "", result.unconfirmed), []).append(result)
    return [
        Line(f"? not confirmed by A/B: {_first([r.case.title for r in found])}: {found[0].unconfirmed}")
        for found in groups.values()
    ]
