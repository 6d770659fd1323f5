"""Texts of a case: its table for a terminal, the text of its failed test, and its numbers for other reports.

The text of a failed test follows the line that says what decided, whatever the case was compared with. For a failed
launch the root cause comes first, then what each rank left behind, and how to run it again.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from pytest_distbench.extensions import Table
from pytest_distbench.judging.comparison import unjudged, value_by
from pytest_distbench.judging.deciders import NO_BASELINE
from pytest_distbench.judging.fingerprint_rule import communication_texts
from pytest_distbench.judging.outcome import LONGEST_LINE, detection, injected_ratio, launch_headline, representative
from pytest_distbench.judging.places import calls_text, changed_text, rank_text
from pytest_distbench.judging.terms import software_changes
from pytest_distbench.judging.words import baseline, change, current, metric_text, statistic_text, threshold
from pytest_distbench.launch.starters import LAUNCHERS, how_started
from pytest_distbench.machine.secrets import mask_text
from pytest_distbench.records.case import BaselineName
from pytest_distbench.records.kinds import METRIC_KINDS, grouped
from pytest_distbench.records.launch import LaunchRecord, RankFate
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import FINGERPRINT, PEAK_MEMORY, Sample
from pytest_distbench.records.reasons import REASONS, ReasonCode, Severity
from pytest_distbench.records.run import STATISTICS, CaseResult, Finding
from pytest_distbench.report import Line, escape, layout
from pytest_distbench.report.tables import COLUMNS
from pytest_distbench.units import about, counted, format_change, format_percent, plural, quantity

_SHOWN_METRICS = 6
_PLACES_HEADER = (" " * 9, "place", "what", "calls", "time", "share", "changed at")
_HOLDERS_HEADER = (" " * 9, "place", "made by", "tensors", "memory", "share", "changed at")
_CONTROL_HEADER = ("", "test", "metric", "slowdown", "injected", "measured", "launches", "time")


class CaseText(NamedTuple):
    """How a kind of case is printed for which a row per metric is not enough, such as a sweep over sizes.

    Attributes:
        is_of: returns whether a case is of the kind.
        choose: takes the judged findings, and returns those to print if all are too many.
        table: prints the case in place of a row per metric; takes it and ``show_all`` as :func:`case_table`, or None.
        remarks: returns lines to print below the table of a case.
    """

    is_of: Callable[[CaseResult], bool]
    choose: Callable[[list[Finding]], list[Finding]]
    table: Callable[..., list[Line]] | None = None
    remarks: Callable[[CaseResult], list[Line]] = lambda result: []


CASE_TEXTS: Table[str, CaseText] = Table("case texts", {})


def _text_of(result: CaseResult) -> CaseText | None:
    return next((text for text in CASE_TEXTS.values() if text.is_of(result)), None)


def case_how(result: CaseResult) -> str:
    """How the ranks of a case ran: ``2 ranks forked with torch loaded, gloo``."""
    under = result.case.conditions
    ranks = f"{counted(under.world_size, 'rank')} {how_started(under.launcher)}"
    return ", ".join(filter(None, [ranks, under.backend]))


def case_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    """The table of one case. Without ``show_all`` metrics within their thresholds are counted, not listed."""
    if not result.verdicts:
        numbers = measured(result.launches) if show_all else []
        rows = [("", metric_text(v), current(v), str(v.launches), statistic_text(v)) for v in numbers]
        return list(map(Line, layout(("", "metric", "this run", "n", "judged by"), rows, left=2))) if rows else []
    text = _text_of(result)
    if text is not None and text.table is not None and result.reference.kind != "paired":
        lines = text.table(result, show_all=show_all)
    else:
        lines = verdict_table(result, show_all=show_all)
    return lines + remarks_of(result)


def remarks_of(result: CaseResult) -> list[Line]:
    """Lines below the table of a case."""
    return [line for text in CASE_TEXTS.values() for line in text.remarks(result)]


def measured(launches: Iterable[LaunchRecord]) -> list[Finding]:
    """A finding without a verdict for each metric of these launches, with the number that would be judged."""
    found = grouped((m.key, m) for launch in launches for m in launch.measurements if m.value is not None)
    return [unjudged(samples) for samples in found.values()]


def judged_number(result: CaseResult, samples: Sequence[Sample]) -> float | None:
    """The number that is judged of a metric, given its samples: its verdict's, else the one that would be judged."""
    known = [m for m in samples if m.value is not None]
    keys = {key for m in known[:1] for key in (m.key, m.key_over_seeds)}
    return next((v.current for v in result.verdicts if v.metric in keys), unjudged(known).current if known else None)


def launches_by_metric(result: CaseResult) -> Callable[[Finding], list[Sample]]:
    """A function that returns a verdict's samples, of the passed launches that the verdict was made from."""
    sides: dict[int, dict[str, list[Sample]]] = {}

    def samples_of(verdict: Finding) -> list[Sample]:
        launches = result.launches_of(verdict)
        if (side := id(launches)) not in sides:
            passed = (m for launch in launches if launch.outcome == "passed" for m in launch.measurements)
            sides[side] = grouped((key, m) for m in passed for key in {m.key, m.key_over_seeds})
        return sides[side].get(verdict.metric, [])

    return samples_of


def values_of(verdict: Finding, samples: Iterable[Sample]) -> list[float]:
    """The judged value of each launch."""
    return [value for m in samples if (value := value_by(verdict.statistic, m)) is not None]


def verdict_rows(
    shown: Sequence[Finding],
    *,
    of: Sequence[CaseResult] = (),
    is_paired: bool = False,
    further: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and rows of a table of verdicts, and a line that names the statistic of both sides.

    The statistic is a column if it differs between rows. A/B pairs have other headings; ``further``: heading -> texts
    of a further column. ``of`` are the cases of the verdicts, which know what was sent.
    """
    names = {"metric": "metric", "current": "candidate" if is_paired else "this run", "baseline": "baseline"}
    names |= {"ratio": "change", "threshold": "threshold"}
    names |= {"mde": "detects from", "launches": "pairs"} if is_paired else {"launches": "n"}
    statistics, note = statistics_of(shown, names["current"])
    columns = {column.name: column for column in COLUMNS}
    texts = []
    for i, v in enumerate(shown):
        is_sent = bool(of) and v.metric == FINGERPRINT
        sent = dict(zip(("current", "baseline"), communication_texts(of[i]), strict=True)) if is_sent else {}
        texts.append([v.row.mark, *(sent.get(name) or columns[name].make_cell(v).text for name in names)])
    for more in [*further.values(), *([statistics] if statistics else [])]:
        texts = [[*row, text] for row, text in zip(texts, more, strict=True)]
    return ["", *names.values(), *further, *(["judged by"] if statistics else [])], texts, note


def statistics_of(shown: Sequence[Finding], current: str = "this run") -> tuple[list[str], list[str]]:
    """The statistic of each verdict if they differ, else a line below the table that explains it."""
    found = sorted({v.statistic for v in shown if statistic_text(v)})
    if len(found) > 1:
        return list(map(statistic_text, shown)), []
    sides = f"{current}, baseline" if any(v.baseline is not None for v in shown) else current
    return [], [f"  {sides}: {STATISTICS[name].means}" for name in found]


def words_of_unchanged(result: CaseResult) -> str:
    """What the count of omitted rows calls them: ``unchanged``, or ``within their thresholds``."""
    return "unchanged" if result.reference.kind == "paired" else "within their thresholds"


def verdict_table(result: CaseResult, *, show_all: bool) -> list[Line]:
    shown = [v for v in result.verdicts if show_all or not (v.row.is_quiet or v.code == "not-evaluated")]
    medians = []
    for v in shown if show_all else ():  # of a timing that over launches of their median iteration
        found = [m.spread for x in result.launches_of(v) for m in x.measurements if m.key == v.metric]
        values = [spread.median for spread in found if spread is not None]
        medians.append(quantity(median(values), v.unit) if values and v.unit == "s" else "")
    further = {"median": medians} if any(medians) else {}
    is_paired = result.reference.kind == "paired"
    header, texts, note = verdict_rows(shown, of=[result] * len(shown), is_paired=is_paired, further=further)
    lines = [*coded_lines(header, list(zip([v.code for v in shown], texts, strict=True)), left=2), *map(Line, note)]
    hidden = sum(v.is_judged and v.row.is_quiet for v in result.verdicts if v not in shown)
    return lines + ([Line(f"  {hidden} more {words_of_unchanged(result)} (-v shows all)")] if hidden else [])


def coded_lines(
    header: Sequence[str], rows: Sequence[tuple[ReasonCode, Sequence[str]]], *, left: int = 1
) -> list[Line]:
    """A table whose rows have the severity of their reasons."""
    if not rows:
        return []
    head, *texts = layout(header, [row for _, row in rows], left=left)
    severities = (REASONS[code].severity for code, _ in rows)
    return [Line(head), *(Line(text, severity) for text, severity in zip(texts, severities, strict=True))]


def telling_verdicts(result: CaseResult) -> Iterable[Finding]:
    """The verdicts that represent a case in a short report: for A/B the first, the last and those that changed.

    Memory, which every measurement has, is included only if it changed.
    """
    judged = [v for v in result.verdicts if v.is_judged and not (v.name == PEAK_MEMORY and v.row.is_quiet)]
    if result.reference.kind == "paired":
        ends = judged if len(judged) <= _SHOWN_METRICS else [judged[0], judged[-1]]
        return [v for v in judged if not v.row.is_quiet or v in ends]
    judged = [v for v in judged if v.current is not None or v.is_failure]
    text = _text_of(result)
    return judged if text is None else text.choose(judged)


def control_table(results: Sequence[CaseResult]) -> list[Line]:
    """A row for each case into which a slowdown was injected."""
    rows: list[tuple[str, ...]] = []
    severities: list[Severity] = ["plain"]
    for result in results:
        control = result.control
        if control is None or control.why_not:
            continue
        shown = representative(control)
        more = f" and {len(control.verdicts) - 1} more" if len(control.verdicts) > 1 else ""
        severities.append("plain" if control.found else "doubt")
        rows.append(
            (
                " " if control.found else "?",
                result.case.title,
                f"{metric_text(shown)}{more}",
                detection(control),
                format_change(injected_ratio(control, shown)),
                format_change(shown.ratio) if shown.ratio is not None else "-",
                str(control.launches),
                f"{control.took_s:.1f} s",
            )
        )
    lines = layout(_CONTROL_HEADER, rows, left=4) if rows else []
    return [Line(text, severity) for text, severity in zip(lines, severities[: len(lines)], strict=True)]


_FEW_LINES = 30
_FEW_LOGS = 4
_NUMBER = re.compile(r"[\d.,]+")  # that ends of logs may differ by, and be the same
_STACK_LINES = 90
_LONGEST_TRACE = 8000
_MOST_REASONS = 8


def explanation(result: CaseResult, *, command: str, platforms: Sequence[str], recorded_at: str = "") -> str:
    """The text of a failed test; ``platforms`` are those that have baselines.

    ``recorded_at`` is the commit of the baseline, or "" if unknown.
    """
    if result.decision == "launch":
        return launch_text(result, rerun_command=command)
    lines = [escape(result.headline)]
    table = [line.text for line in case_table(result, show_all=False)]
    match result.decision:
        case "failed" | "bound" | "unaccepted":
            is_number = result.decision != "unaccepted"
            found = [v for v in result.verdicts if v.is_judged and (v.is_failure if is_number else v.row.fails_under)]
            reasons = [(metric_text(v), untold(v.reason, result.headline)) for v in found if v.code != "communication"]
            further = [escape(f"{name}: {text}") for name, text in reasons if text]
            if any(v.code not in ("communication", "not-evaluated") and not v.row.is_quiet for v in result.verdicts):
                lines += ["", *table]
            lines += ["", *further[:_MOST_REASONS]]
            lines += cause_lines(result) if is_number else []
            lines += place_lines(result)
            lines += [*_not_timed(result), *comparison_lines(result, recorded_at=recorded_at)]
            lines += [f"reproduce  {command}", *filter(None, [_why_not_accepted(result)])]
            if accept := accept_command(result, command):
                lines.append(f"intended?  {accept}, then commit the baselines")
        case "refused":
            lines += ["", *table, "", "what was stored before is unchanged"]
        case "new" if result.reference.kind != "paired":
            lines[0] += f" (have: {', '.join(platforms) or 'none'})"
            lines += ["", f"looked in {result.reference.path} for {result.case.key}: {case_how(result)}"]
            lines += [f"record it:  {command} --distbench-update=new"]
        case "not_found":
            lines += _not_found(result, command)
    return "\n".join(lines)


def untold(reason: str, headline: str) -> str:
    """The part of a reason that the headline of a case does not contain."""
    first, _, more = reason.partition("; ")
    return more if first and first in headline else reason


def cause_lines(result: CaseResult) -> list[str]:
    """Possible causes of the failure and an empty line, or []."""
    lines = [line for cause in result.causes for line in (cause.reason, *(f"  {more}" for more in cause.differences))]
    return [*lines, ""] if lines else []


def place_lines(result: CaseResult, *, has_table: bool = True) -> list[str]:
    """The places in the code that take the added time or memory, and an empty line, or []; a page has the tables."""
    lines = []
    for found in filter(None, (result.places, result.memory_places)):
        if found.why_not:
            lines += [escape(f"where      not known: {found.why_not}"), ""]
            continue
        rows = []
        for row in found.rows if has_table else ():
            amounts = " -> ".join(quantity(amount, found.unit) for amount in row.amounts)
            share = format_percent(row.share)
            rows.append(("", rank_text(row), row.what, calls_text(row), amounts, share, changed_text(row)))
        is_time = found.unit == "s"
        header = _PLACES_HEADER if is_time else _HOLDERS_HEADER
        took = f"by {found.launches} more launches in {about(found.took_s)}, which are not judged"
        if is_time:
            took += f"; an iteration took {found.overhead:.1f} times as long in them"
        if is_time and result.case.device == "cuda":
            took += "; each operator was waited for, so nothing overlapped on the GPU"
        table = layout(header, rows, left=3) if rows else []
        lines += [escape(f"where      {found.sentence}"), *table, f"           {took}", ""]
    return lines


def launch_text(result: CaseResult, *, rerun_command: str) -> str:
    """Explain a failed launch: root cause, remarks of the launcher, fates with equal ones merged, logs, commands."""
    launch = result.launches[-1]
    traces = [fate.error.traceback for fate in launch.fates if fate.error is not None]  # shown once, below
    reason = launch.reason.partition("\n")[2].strip()
    further = [] if any(reason in trace for trace in traces) else reason.splitlines()[-_FEW_LINES:]
    parts = [escape(launch_headline(launch)), *(f"    | {line[:LONGEST_LINE]}" for line in further)]
    parts += [*map(escape, launch.remarks), ""]
    for (title, body), fates in grouped((_title_and_body(fate), fate) for fate in launch.fates).items():
        ranks = sorted(fate.rank for fate in fates)
        names = ", ".join(f"{rank} ({launch.hosts[rank]})" if launch.hosts else str(rank) for rank in ranks)
        who = escape(launch.command[:LONGEST_LINE]) or f"{plural(len(fates), 'rank')} {names}"
        parts += [f"--- {who}: {title}", *([body, ""] if body else [])]
        alike = grouped((_NUMBER.sub("", _tail(fate)), fate) for fate in fates)
        for fate, *others in [*alike.values()][:_FEW_LOGS]:
            if (tail := _tail(fate)) and not any(tail in trace for trace in traces):
                ends = f"; {plural(len(others), 'rank')} {', '.join(str(other.rank) for other in others)}: the same"
                parts.append(f"    end of {LaunchFiles(Path(launch.logs)).log(fate.rank)}{ends * bool(others)}:")
                parts += [*(f"    | {line[:LONGEST_LINE]}" for line in tail.splitlines()), ""]
    parts.append(f"logs:    {launch.logs}/rank*.log")
    parts.append(f"re-run:  {rerun_command}")
    launcher = LAUNCHERS.get(result.case.conditions.launcher)
    has_terminal = launcher is None or launcher.hosts == "one"
    if not launch.command and not result.case.conditions.engine and has_terminal:
        first = launch.fates[0].rank if launch.fates else 0
        parts.append(f"debug:   {rerun_command} --distbench-attach {first}")
    return "\n".join(parts)


def _tail(fate: RankFate) -> str:
    return "\n".join(fate.log_tail.strip().splitlines()[-_FEW_LINES:])


def remark_lines(launches: Sequence[LaunchRecord]) -> list[str]:
    """Remarks of launches that passed, each once, with the number of launches that made it."""
    counts = Counter(remark for launch in launches for remark in dict.fromkeys(launch.remarks))
    return [f"{remark} ({count} of {len(launches)} launches)" for remark, count in counts.items()]


def _title_and_body(fate: RankFate) -> tuple[str, str]:
    words = [f"{'went on' if fate.went_on else fate.how}, in phase {fate.phase}"]
    if fate.waits_at:
        words.append(f"at {fate.waits_at}")
    if fate.collective_number is not None:
        words.append(f"last collective: {fate.collective} (number {fate.collective_number})")
    if fate.is_victim:
        words.append("followed from another rank's failure")
    body = "\n".join(f"    {line}" for line in fate.stacks.splitlines()[:_STACK_LINES])
    if fate.error is not None:
        body, half = fate.error.traceback.rstrip(), _LONGEST_TRACE // 2
        if (left_out := len(body) - 2 * half) > 0:
            body = f"{body[:half]}\n... {left_out} characters left out, the log has them ...\n{body[-half:]}"
    elif fate.is_victim:  # the one that failed is shown
        body = ""
    return "; ".join(words), body


def _not_timed(result: CaseResult) -> list[str]:
    failed = [v for v in result.verdicts if v.is_failure]
    left = [v for v in result.verdicts if v.code == "not-evaluated"]
    notes = ["exact check: noise has no part in it"] if failed and not any(v.is_noisy for v in failed) else []
    if left:
        numbers = [
            f"{metric_text(v)} ({quantity(v.current, v.unit)}, baseline {quantity(v.baseline, v.unit)})" for v in left
        ]
        more = f" and {len(left) - _MOST_REASONS} more" if len(left) > _MOST_REASONS else ""
        names = escape(", ".join(numbers[:_MOST_REASONS]) + more)
        notes.append(f"not evaluated, as the case already failed: {names}")
    return [*notes, ""] if notes else []


def accept_command(result: CaseResult, command: str) -> str:
    """The command that stores the numbers of a failed case as its new baseline, or "" if none does."""
    is_stored = result.reference.kind == "stored" and result.launches[-1].outcome == "passed"
    return f"{command} --distbench-update" if is_stored and not _why_not_accepted(result) else ""


def _why_not_accepted(result: CaseResult) -> str:
    if any(v.code == "bound" for v in result.verdicts):
        if result.model:
            return "no update accepts this: nothing is stored of a model; fix the model, its plan or the layout"
        return "no update accepts this: fix what was measured, or change the bound where it was set"
    regressed = [v for v in result.verdicts if v.row.may_be_confirmed]
    if any(v.current is None and not METRIC_KINDS[v.better].counts_steps for v in regressed):
        return "no update accepts a metric without a value: fix what was measured"
    return ""


def lost_text(names: Sequence[BaselineName], paths: Sequence[str], *, folder: str, command: str) -> str:
    cases = [name.key for name in names]
    more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
    parts = [word for name in names[:_MOST_REASONS] for word in ("-k", str(name))]
    prune = shlex.join(["distbench", "baseline", "prune", "--baselines", folder, *parts, "--delete"])
    return "\n".join(
        [
            escape(f"{cases[0]}{more}: in the baseline, and not measured by this test"),
            "",
            "no call of distbench.run, judge or a ready fixture measured:",
            *(f"  {escape(case)}  {escape(path)}" for case, path in zip(cases, paths, strict=True)),
            "",
            f"If this is intended:  {prune}",
            f"reproduce  {command}",
        ]
    )


def comparison_lines(result: CaseResult, *, recorded_at: str = "") -> list[str]:
    """What was compared: the two revisions, or the file of the baseline and its commit."""
    stored = result.reference.software
    current = result.launches[0].software if result.launches else {}
    if result.reference.kind == "paired":
        sides = [("baseline ", result.reference.name, stored), ("candidate", "", current)]
        lines = ["  ".join(filter(None, [side, name, _versions(software)])) for side, name, software in sides]
    elif any(v.baseline is not None for v in result.verdicts):
        path = os.path.relpath(result.reference.path) if result.reference.path else ""
        shown = result.reference.path if path.startswith("..") else path
        commit = f", recorded at {recorded_at}" if recorded_at else ""
        lines = [f"baseline   {shown}{commit}", f"           {_versions(stored)}"]
    else:
        lines = [f"this run   {result.environment.platform}  {_versions(current)}"]
    if (turns := result.confirmation) is not None and turns.baselines:
        sides_of = f"candidate ({short(turns.here)}) and twice {turns.revision}, the baseline commit"
        lines.append(f"A/B        {sides_of}: {len(turns.launches)} times in {about(turns.took_s)}")
    return lines + ([f"differs    {what}" for what in software_changes(stored, current)] if stored else [])


def short(commit: str) -> str:
    """A commit as texts name it: ten digits of the hash, and what follows the hash."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]*", r"\1", commit)


def _versions(software: dict[str, str]) -> str:
    return ", ".join(f"{k} {software[k]}" for k in ("torch", "cuda", "nccl", "python") if k in software)


def _not_found(result: CaseResult, command: str) -> list[str]:
    assert result.control is not None
    control = result.control
    rows = [
        (
            metric_text(v),
            format_change(injected_ratio(control, v)),
            format_change(v.ratio) if v.ratio is not None else "-",
            f"+{v.threshold:.1%}" if v.threshold is not None else "-",
            f"+{v.mde:.1%}" if v.mde is not None and math.isfinite(v.mde) else "-",
        )
        for v in control.verdicts
    ]
    reasons = [f"{metric_text(v)}: {v.reason}" for v in control.verdicts if v.reason]
    return [
        "",
        *map(escape, layout(("metric", "injected", "measured", "threshold", "detects from"), rows, left=1)),
        "",
        *map(escape, reasons[:_MOST_REASONS]),
        *([f"no A/B: {escape(control.why_alone)}"] if control.why_alone else []),
        f"what would help: {_HELP[control.step]}",
        f"again:  {command} --distbench-control{f'={control.share:g}' if control.is_chosen else ''}",
    ]


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


PREFIX = "distbench."
MOST = 60
"""Properties per test. Viewers show them all in one list: changed numbers of a long sweep come first."""

_LONGEST_NAME = 150
_LONGEST_TEXT = 250


def number_properties(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Name and text of every number of the cases of a test, as many as fit, without secrets."""
    found = []  # with how much each matters, 0: most
    for case in cases:
        for verdict in case.verdicts:
            is_usual = verdict.kind in ("unchanged", "new") and verdict.code != "numerics"
            rank = (1 if is_usual else 0) if verdict.is_judged else 2
            found.append((rank, _property(case, verdict.metric, _text(case, verdict))))
        if not case.verdicts and case.launches[-1].outcome == "passed":
            texts = ((v.metric, filter(None, [current(v), statistic_text(v)])) for v in measured(case.launches))
            found += [(2, _property(case, metric, ", ".join(text))) for metric, text in texts]
    found += [(0, _property(c, "advisory", c.headline)) for c in cases if c.outcome == "advisory"]
    if len(found) <= MOST:
        return [text for _, text in found]
    kept = sorted(sorted(range(len(found)), key=lambda i: found[i][0])[: MOST - 1])
    left_out = f"{len(found) - len(kept)} numbers are left out; --distbench-json FILE has all"
    return [*(found[i][1] for i in kept), (f"{PREFIX}more", left_out)]


def _text(case: CaseResult, verdict: Finding) -> str:
    value = "" if verdict.current is None else current(verdict)
    if not verdict.is_judged:
        return value or "no value"
    changed = change(verdict) if change(verdict) != verdict.kind else ""
    most = threshold(verdict)
    allowed = {"": "", "exact": "(exact)"}.get(most, f"(threshold {most})")
    judgement = " ".join(filter(None, [changed, allowed])) or verdict.reason
    judgement = "" if judgement == NO_BASELINE[1] else judgement  # the answer says it
    stored = f"{case.update} baseline" if case.is_written else ""
    without = "" if stored else "no baseline"
    answer = ": ".join(filter(None, [without if verdict.kind == "new" else verdict.kind, judgement]))
    compared = f"baseline {baseline(verdict)}" if verdict.baseline is not None else ""
    return ", ".join(filter(None, [value, answer, compared, stored, statistic_text(verdict)]))


def _property(case: CaseResult, metric: str, text: str) -> tuple[str, str]:
    """A property's name, which begins with that of the case's run if it has its own, and its text."""
    run = case.case.label
    name = metric if run in ("", metric) else f"{run}.{metric}"
    return f"{PREFIX}{_bounded(name, _LONGEST_NAME)}", _bounded(text, _LONGEST_TEXT)


def _bounded(text: str, most: int) -> str:
    text = escape(mask_text(text))
    return text if len(text) <= most else f"{text[: most - 3]}..."
