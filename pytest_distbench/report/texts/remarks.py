"""What a run says of its own rules, a line each: what could not have failed, what moved together, what was planted."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from pytest_distbench.judging.sensitivity import common_movement, is_learned, out_of_reach
from pytest_distbench.records.iteration import TRAINING_STEP
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import CaseResult, Control, Finding, is_found
from pytest_distbench.report.texts import Line, escape, layout, metric_text
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
        outcome(control),
        format_change(planted_ratio(control, shown)),
        format_change(shown.ratio) if shown.ratio is not None else "-",
        str(control.launches),
        f"{control.took_s:.1f} s",
    )


def telling(control: Control) -> Finding:
    """The clock that speaks for all: in which the slowdown was found, and of those the one that moved most."""
    return max(control.verdicts, key=lambda v: (is_found(v), _worse_by(v)))


def _worse_by(verdict: Finding) -> float:
    return METRIC_KINDS[verdict.better].sign * math.log(verdict.ratio) if verdict.ratio and verdict.ratio > 0 else 0.0


def planted_ratio(control: Control, verdict: Finding) -> float:
    """What the number was to be of its value without the delay: of a rate it is less."""
    return (1 + control.share) ** METRIC_KINDS[verdict.better].sign


def outcome(control: Control) -> str:
    every = f" in {len(control.found)} of {len(control.verdicts)}" if len(control.verdicts) > 1 else ""
    match control.step:
        case "bound":
            return f"detected{every}: beyond its bound"
        case "turns" if control.found:
            return f"detected{every}" if control.has_baseline else f"detected{every}, by A/B alone: no baseline"
        case "turns":
            return "not detected: A/B did not fail" + ("" if control.has_baseline else "; no baseline")
        case "stored":
            return (
                f"detected{every}, against the baseline alone" if control.found else "not detected, and A/B was not run"
            )
        case _:
            return "not detected: not suspicious"


def not_found_headline(result: CaseResult) -> str:
    assert result.control is not None
    control = result.control
    verdict = telling(control)
    seen = "nothing" if verdict.ratio is None else format_change(verdict.ratio)
    planted = format_change(planted_ratio(control, verdict))
    where = "by A/B" if control.step == "turns" else "against the baseline"
    return f"a slowdown was {outcome(control)}: {metric_text(verdict)} injected {planted}, measured {seen} {where}"


def not_found_text(result: CaseResult, *, command: str) -> str:
    assert result.control is not None
    control = result.control
    rows = [
        (
            metric_text(v),
            format_change(planted_ratio(control, v)),
            format_change(v.ratio) if v.ratio is not None else "-",
            f"+{v.threshold:.1%}" if v.threshold is not None else "-",
            f"+{v.mde:.1%}" if v.mde is not None and math.isfinite(v.mde) else "-",
        )
        for v in control.verdicts
    ]
    reasons = [f"{metric_text(v)}: {v.reason}" for v in control.verdicts if v.reason]
    return "\n".join(
        [
            escape(not_found_headline(result)),
            "",
            *map(escape, layout(("metric", "injected", "measured", "threshold", "MDE"), rows, left=1)),
            "",
            *map(escape, reasons[:_MOST_REASONS]),
            *([f"no A/B: {escape(control.why_alone)}"] if control.why_alone else []),
            f"what would help: {_HELP[control.step]}",
            f"again:  {command} --distbench-control{f'={control.share:g}' if control.is_chosen else ''}",
        ]
    )


_MOST_REASONS = 8
_HELP = {
    "screening": (
        "a baseline with more launches or of a quieter hour (--distbench-update), a larger tolerance, or "
        "--distbench-confirm=always, which runs A/B for every case"
    ),
    "turns": (
        "more iterations per loop, which reduce the noise of a pair; more time for pairs "
        "(--distbench-confirm=auto:SECONDS); or a larger tolerance"
    ),
    "stored": "whatever makes A/B possible (above); a baseline with more launches; or a larger tolerance",
}


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
