"""What a terminal shows of a run: what failed or is unclear, counts, the sensitivity, and what to do next.

Rows are for numbers that failed, are missing or inconclusive; all else is counted, on one screen unless -v asks for all
of it. The last line is the whole run in one sentence. One table has the words of counts and sentence.
"""

from __future__ import annotations

import re
import shlex
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pytest_distbench.judging.entry import FEWEST_EXACT, FEWEST_LAUNCHES, sensitivity_lines
from pytest_distbench.judging.outcome import COMMUNICATION_CHANGED, state_of, why_failed, why_number
from pytest_distbench.judging.screening import is_timing
from pytest_distbench.judging.terms import software_changes, worst
from pytest_distbench.judging.thresholds import BUSIER_SHARE, LAST_LOOK
from pytest_distbench.judging.words import change, metric_text
from pytest_distbench.records.case import BaselineName
from pytest_distbench.records.iteration import NOT_RECORDED
from pytest_distbench.records.kinds import METRIC_KINDS, grouped
from pytest_distbench.records.metric import FINGERPRINT, WALL_TIME
from pytest_distbench.records.reasons import REASONS, VERDICTS
from pytest_distbench.records.run import CaseResult, Finding, RunRecord
from pytest_distbench.records.wanted import LONG_BASELINE_LAUNCHES
from pytest_distbench.report import Line, layout, lines_of
from pytest_distbench.report.verdicts import case_how, case_table, control_table, telling_verdicts, verdict_rows
from pytest_distbench.units import about, counted, format_change, format_percent, plural, quantity

_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?")
_SHOWN_NAMES = 10

MOST_LINES = 25
LONGEST = 200  # characters of a line of the screen; a longer text goes on below it
_MOST_OF_A_TEXT = 4  # lines; -v shows all of it

_ROWS = 7
_NAMES = 3
_MOST_WRITTEN = 12  # numbers that an update has stored, one by one
_RECORDED = 10  # of a noisy case


def summary_lines(
    results: Sequence[CaseResult],
    remarks: Sequence[Finding],
    *,
    verbosity: int,
    commands: Mapping[str, str],
    folder: Path,
    took_s: float | None = None,
) -> list[Line]:
    """The results of a run, on one screen unless -v asks for all; the sentence that ends it is separate."""
    compared = [r for r in results if r.update in ("", "completed") and r.verdicts]
    updated = [r for r in results if r.update]
    lines: list[Line] = []
    if verbosity > 0:
        for result in results:
            how = f"{case_how(result)}, {counted(len(result.launches), 'launch')}"
            lines += [Line(f"{result.case.title}  {how}"), *case_table(result, show_all=True), Line("")]
    elif verbosity == 0 and compared and not any(r.control for r in results):
        lines += rows(compared)
    undecided, explained = inconclusive(compared) if verbosity == 0 else ([], [])
    if results:
        lines += [*counts(results, took_s=took_s), *undecided]
    lines += lines_of(r for r in remarks if r.code == "learning" or (r.code == "learning-known" and verbosity > 0))
    lines += _not_judged(compared, lambda v: v.row.is_reported and v not in explained, by_text=verbosity > 0)
    besides = [r for r in updated if r.update != "completed"]
    lines += _not_judged(
        besides, lambda v: v.is_undecided and METRIC_KINDS[v.better].is_of_training, by_text=verbosity > 0
    )
    lines += run_lines(results, remarks)
    found = {verdict.code for result in compared for verdict in result.verdicts if verdict.is_judged}
    asked = [code for code, row in REASONS.items() if code in found and (row.fails or row.is_reported)]
    lines += [Line(f"what that means:  distbench explain {' '.join(asked)}")] if asked else []
    has_failed = any(result.launches[-1].outcome == "failed" for result in results)  # that is to be mended first
    steps = [] if has_failed else next_steps(compared, commands)
    shown = on_one_screen(lines, steps) if verbosity == 0 else [*lines, *steps]
    advisory = [Line(f"A {r.case.title}: {r.headline}", "doubt") for r in results if r.outcome == "advisory"]
    traces = [line for result in results for line in trace_lines(result)]  # whose paths are copied
    return [*shown, *traces, *updated_lines(results, folder), *advisory]


def run_lines(results: Sequence[CaseResult], remarks: Sequence[Finding]) -> list[Line]:
    """Lines about a run as a whole: injected slowdowns, why nothing was judged, and remarks."""
    nothing = judged_nothing(results) if results else ""
    noted = [Line(nothing, "doubt")] if nothing else []
    return [
        *control_table(results),
        *noted,
        *lines_of(r for r in remarks if r.code not in ("learning", "learning-known")),
    ]


def judged_nothing(results: Sequence[CaseResult]) -> str:
    """Why a run compared nothing exactly, with the next step: baselines of other software, or no test ran here.

    It is "" if the run did compare; noise and missing baselines have their own lines.
    """
    judged = [(r, v) for r in results for v in r.verdicts if v.is_judged]
    if not results:
        return "judged nothing: no test was measured (-rs says why); add one that runs here"
    if any(r.update or r.outcome not in ("passed", "skipped") for r in results):
        return ""
    exact = [(r, v) for r, v in judged if not METRIC_KINDS[v.better].scatters]
    if any(v.code != "other-software" for _, v in exact):
        return ""
    if exact:
        result, verdict = exact[0]
        besides = " but memory and timings" if len(exact) < len(judged) else ""
        changes = ", ".join(software_changes(result.reference.software, result.environment.software))
        why = f"{metric_text(verdict)}: {verdict.reason}{changes and f' ({changes})'}"
        return f"judged nothing{besides}: {result.case.title} {why}; {verdict.row.next_step}"
    if not judged and (skipped := [r for r in results if r.outcome == "skipped"]):
        return f"judged nothing: {skipped[0].case.title}: {skipped[0].headline}; add a test that runs here"
    return ""


def ending_lines(record: RunRecord) -> list[Line]:
    """Lines that precede all results of a run: why they may be incomplete."""
    lines = []
    if record.was_interrupted:
        lines.append("pytest was interrupted: what would have come later is not here")
    if record.failed_besides:
        number = record.failed_besides
        lines.append(
            f"{number} {plural(number, 'test')} or {plural(number, 'module')} failed besides, of which nothing was "
            "measured: see what pytest printed"
        )
    if not record.results and not lines:
        lines.append("nothing was measured")
    return [Line(text, "failure") for text in lines]


def unused_lines(unused: Sequence[BaselineName], *, pruned: bool) -> list[Line]:
    if not unused:
        return []
    count = f"{len(unused)} {'baseline was' if len(unused) == 1 else 'baselines were'} not used"
    shown, them = unused if pruned else unused[:_SHOWN_NAMES], "it" if len(unused) == 1 else "them"
    more = [f"  and {len(unused) - len(shown)} more"] if len(shown) < len(unused) else []
    first = f"{count}{', and deleted' if pruned else f'; --distbench-prune deletes {them}'}:"
    return [Line(text, "doubt") for text in (first, *(f"  {n}" for n in shown), *more)]


def missing_lines(
    missing: Mapping[BaselineName, str], results: Sequence[CaseResult], *, folder: Path, fails: bool
) -> list[Line]:
    """Lines on baselines whose test is gone, with commands that move or delete them; ``missing``: baseline -> test."""
    if not missing:
        return []
    sign = "x" if fails else "?"
    lines = [f"{sign} {counted(len(missing), 'baseline')} without a test, which is gone or has another name:"]
    new = [result.case for result in results if not result.reference.metrics]
    shown = list(dict.fromkeys(missing.values()))
    for old in shown[:_SHOWN_NAMES]:
        test = old.partition("[")[0]
        names = {case.test for case in new} if old == test else {f"{c.test}[{c.id}]" for c in new if c.test == test}
        [name] = names if len(names) == 1 else ["NEW"]
        move = ["distbench", "baseline", "move", "--baselines", str(folder), old, name]
        prune = ["distbench", "baseline", "prune", "--baselines", str(folder), "-k", old, "--delete"]
        lines += [f"  {old}", f"    if it has another name:  {shlex.join(move)}"]
        lines += [f"    if it is not needed:     {shlex.join(prune)}"]
    lines += [f"  and {len(shown) - _SHOWN_NAMES} more tests"] if len(shown) > _SHOWN_NAMES else []
    return [Line(text, "failure" if fails else "doubt") for text in lines]


def interrupted_lines(results: Sequence[CaseResult], *, running: int, left: int, command: str) -> list[Line]:
    """What an interrupted update has stored, and ``command``, which continues it; without one nothing does.

    Several tests may be running under pytest-xdist; those left are counted as far as they were collected.
    """
    stored = sum(result.is_written for result in results)
    text = f"interrupted: {counted(stored, 'case')} {'is' if stored == 1 else 'are'} stored"
    if running:
        text += f", and nothing of the {plural(running, 'test')} that {_were(running)} running"
    elif not results:
        text = "interrupted before the first test: nothing is stored"
    text += f"; {left} {_were(left)} to follow" if left else ""
    then = f"continue with:  {command}" if command else "the same command measures all of them again"
    return [Line(text, "doubt"), Line(then, "doubt")] if command or running or results else [Line(text, "doubt")]


def trace_lines(result: CaseResult) -> list[Line]:
    if (trace := result.trace) is None:
        return []
    name = result.case.title
    lines = [Line(f"trace of {name}: {path}") for path in [trace.path, *trace.of_ranks] if path]
    missing = "not whole" if trace.path else "none"
    return [*lines, Line(f"? trace of {name}: {missing}: {trace.why_not}", "doubt")] if trace.why_not else lines


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _not_judged(results: Sequence[CaseResult], is_asked: Callable[[Finding], bool], *, by_text: bool) -> list[Line]:
    """Lines on findings without an answer: one per reason code, or with ``by_text`` per sentence, numbers aside."""
    asked = [
        (result, verdict)
        for result in results
        for verdict in result.verdicts
        if is_asked(verdict) or (verdict.kind == "new" and result.reference.kind == "paired")
        if NOT_RECORDED not in verdict.reason
    ]
    lines = []
    for found in grouped(((v.code, _NUMBER.sub("", v.reason) if by_text else ""), (r, v)) for r, v in asked).values():
        result, verdict = found[0]
        cases = len({id(other) for other, _ in found})
        more = f" and {len(found) - 1} more{f' of {cases} cases' if cases > 1 else ''}" if len(found) > 1 else ""
        row = verdict.row
        text = f"{row.mark} {result.case.title} {metric_text(verdict)}{more}: {verdict.reason}"
        lines.append(Line(text, row.severity))
    return lines


def updated_lines(results: Sequence[CaseResult], folder: Path) -> list[Line]:
    """The changes that an update made to baselines, or [] without an update."""
    results = [r for r in results if r.update]
    if not results:
        return []
    counts = Counter(r.update for r in results)
    platform = results[0].environment.platform
    written = f"{counts['changed']} changed, {counts['new']} new, {counts['kept']} kept"
    rare = (("completed", counts["completed"]), ("rewritten", counts["rewritten"]))
    written += "".join(f", {number} {words}" for words, number in (*rare, ("not stored", counts["refused"])) if number)
    lines = [Line(f"baselines in {folder / platform}: {written}")]
    rows = []
    stored = [r for r in results if r.is_written]
    for result in stored:
        name = result.case.title
        for verdict in filter(_written(result).__contains__, telling_verdicts(result)):
            old = result.previous.get(verdict.metric)
            if old is not None and old == verdict.current:
                continue
            note = "regression accepted" if verdict.is_failure else ""
            if old is None:
                note = "changed" if verdict.code == "communication" else "new"
            then, now = (quantity(value, verdict.unit) for value in (old, verdict.current))
            change_text = format_change(verdict.current / old) if old and verdict.current is not None else ""
            rows.append((name, metric_text(verdict), then, "->", now, change_text, note))
            name = ""
    if rows:
        head = ("test", "metric", "old", "", "new", "change", "")
        lines += [Line(f"  {line}") for line in layout(head, rows[:_MOST_WRITTEN], left=2)]
        lines += [Line(f"  and {len(rows) - _MOST_WRITTEN} more")] if len(rows) > _MOST_WRITTEN else []
    few = []
    for result in stored:  # with fewer than an update makes where nobody says how many
        usual = LONG_BASELINE_LAUNCHES if result.case.conditions.engine else FEWEST_LAUNCHES
        if len(result.launches) < usual and any(v.is_noisy for v in _written(result)):
            few.append(result)
    if few:
        stored_few = (
            f"{counted(len(few), 'case')} stored with fewer than {FEWEST_LAUNCHES} launches: their noise is not known"
        )
        lines.append(Line(f"? {stored_few}, later runs can hardly judge against them", "doubt"))
    lines += map(Line, sensitivity_lines([(r.case.title, r.recorded) for r in stored if r.recorded is not None]))
    return [*lines, Line(f"review with: distbench baseline diff --baselines {folder}")]


def _written(result: CaseResult) -> list[Finding]:
    return [v for v in result.verdicts if result.update != "completed" or v.metric in result.previous]


STATES = {
    "failed": ("FAILED", "FAILED"),
    "advisory": ("would have failed, but advisory (A)", "would have failed (advisory)"),
    "xfailed": ("failed as expected (xfail_perf)", "failed as expected"),
    "skipped": ("skipped", "skipped"),
    "inconclusive": ("inconclusive", "INCONCLUSIVE"),
    "updated": ("stored as baselines (U)", "stored as baselines"),
    "new": ("measured, nothing to compare with (N)", "measured without a baseline"),
    "bounds": ("passed their bounds, which need no baseline", "passed their bounds"),
    "environment": ("passed: the environment is slower or computes other digits, not the code", "passed"),
    "passed": ("passed", "passed"),
    "measured": ("measured, not judged", "measured"),
}
"""States of a case, the most severe first -> its words after the number in the list, and in the sentence."""


def rows(results: Sequence[CaseResult]) -> list[Line]:
    """A row for each number that failed or is unclear; a sweep is represented by its telling sizes."""
    found = []
    for result in results:
        is_asked = result.outcome == "failed" and not any(v.is_failure for v in result.verdicts)
        for v in filter(lambda v: v.is_judged, telling_verdicts(result)):
            fails = v.is_failure or (is_asked and bool(v.row.fails_under))
            if fails or (v.kind == "inconclusive" and v.row.is_comparable):
                found.append((result, v))
    if not found:
        return []
    shown = found[:_ROWS]
    is_paired = found[0][0].reference.kind == "paired"
    (mark, *headings), cells, note = verdict_rows([v for _, v in shown], of=[r for r, _ in shown], is_paired=is_paired)
    texts = []
    for index, (result, verdict) in enumerate(shown):
        name = result.case.title if not index or shown[index - 1][0] is not result else ""
        first, *rest = cells[index]
        is_advisory = verdict.is_failure and result.outcome == "advisory"
        texts.append(("A" if is_advisory else first, name, *rest, verdict.kind))
    head, *lines = layout((mark, "test", *headings, "verdict"), texts, left=3)
    more = [f"  {len(found) - len(shown)} more (-v shows all)"] if len(found) > len(shown) else []
    marked = [Line(text, v.row.severity) for text, (_, v) in zip(lines, shown, strict=True)]
    return [Line(head), *marked, *map(Line, [*note, *more])]


def counts(results: Sequence[CaseResult], *, took_s: float | None) -> list[Line]:
    """How much was measured, and a line for each state that cases are in."""
    kinds = Counter(v.kind for r in results for v in r.verdicts if v.is_judged)
    order = sorted(VERDICTS.items(), key=lambda item: not item[1].is_answer)
    by_kind = ", ".join(f"{kinds[name]} {name}" for name, _ in order if kinds[name])
    metrics = f"{counted(kinds.total(), 'metric')}{by_kind and f' ({by_kind})'}"
    launches = sum(len(r.launches) + len(r.reference.launches) for r in results)
    took = f" in {about(took_s)}" if took_s is not None else ""
    lines = [Line(f"{metrics}, {counted(launches, 'launch')}{took}")]
    groups = grouped((state_of(result), result) for result in results)
    for state, (words, _) in STATES.items():
        if cases := groups.get(state):
            names = list(dict.fromkeys(r.case.title for r in cases))
            more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            reason = {"failed": _why(cases), "passed": _compared(cases)}.get(state)
            what = reason or ", ".join(names[:_NAMES]) + more
            lines.append(Line(f"{len(cases):5d} {plural(len(cases), 'case')} {words}{what and f': {what}'}"))
    # How many suspicious timings interleaved A/B has cleared, and what that took.
    cleared = [r.confirmation for r in results if r.confirmation and any(v.code == "cleared" for v in r.verdicts)]
    for how, group in (
        ("interleaved A/B with", [c for c in cleared if c.baselines]),
        ("further launches, as the code is still that of", [c for c in cleared if not c.baselines]),
    ):
        launches = sum(len(c.launches) + len(c.baselines) + len(c.controls) for c in group)
        revisions = ", ".join(dict.fromkeys(c.revision for c in group))
        cost = f"({launches} launches, {about(sum(c.took_s for c in group))})"
        if group:
            lines.append(Line(f"{len(group):9d} with suspicious or noisy timings, cleared by {how} {revisions} {cost}"))
    return lines


def _compared(results: Sequence[CaseResult]) -> str:
    judged = [v for r in results for v in r.verdicts if v.is_judged]
    exact = {
        "communication": any(v.metric == FINGERPRINT for v in judged),
        "losses": any(METRIC_KINDS[v.better].is_of_training for v in judged),
        "exact numbers": any(METRIC_KINDS[v.better].is_exact and v.metric != FINGERPRINT for v in judged),
    }
    noisy = {
        "memory": any(METRIC_KINDS[v.better].is_memory for v in judged),
        "timings": any(is_timing(v, v.unit) for v in judged),
    }
    parts = [(exact, "unchanged"), (noisy, "within their thresholds")]
    named = [([word for word, has in names.items() if has], what) for names, what in parts]
    lists = [(" and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]])), what) for words, what in named]
    return "; ".join(f"{words} {what}" for words, what in lists if words)


def _why(results: Sequence[CaseResult]) -> str:
    words = Counter(map(why_failed, results))
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{number} {word}" for word, number in words.items())


_SENTENCES = {
    COMMUNICATION_CHANGED: "the communication changed",
    "beyond a bound": "a number is beyond its bound",
    "numbers missing": "numbers of the baseline are missing",
    "losses changed": "the loss diverges from the baseline",
    "trains otherwise": "the training differs from the baseline",
    "more memory": "more memory is needed",
    "slower": "a timing regressed",
}
"""Reason why a case failed, in two or three words -> the same as a clause; other reasons are clauses already."""


def in_words(results: Sequence[CaseResult]) -> str:
    """What became of the cases: ``2 of 5 cases failed: the loss diverges from the baseline in both``."""
    if not results:
        return "nothing was measured"
    failed, advisory = ([r for r in results if r.outcome == outcome] for outcome in ("failed", "advisory"))
    of, would = f"of {counted(len(results), 'case')}", STATES["advisory"][1]
    if failed:
        return f"{_reasons(f'{len(failed)} {of} failed', failed)}{(advisory and f'; {len(advisory)} {would}') or ''}"
    states = Counter(map(state_of, results))
    others = [(states["inconclusive"], "inconclusive"), (states["new"], "without a baseline")]
    outcome = _reasons(f"{len(advisory)} {of} {would}", advisory) if advisory else f"none {of} failed"
    return ", ".join([outcome, *(f"{number} {words}" for number, words in others if number)])


def headline(results: Sequence[CaseResult], *, besides: int = 0, was_interrupted: bool = False) -> str:
    """The first line of a report: other failures of the run, then what became of the cases."""
    noun = f"other {plural(besides, 'test')} or {plural(besides, 'module')}"
    first = ["interrupted"] * was_interrupted + [f"{besides} {noun} failed"] * bool(besides)
    return ", ".join([*first, in_words(results)] if results or not first else first)


def _reasons(count: str, failed: Sequence[CaseResult]) -> str:
    groups: dict[str, list[CaseResult]] = {}
    for result in failed:
        why = [why_failed(result)]
        numbers = [v for v in result.verdicts if v.is_failure and v.code != "communication"]
        if why == [COMMUNICATION_CHANGED] and numbers:  # what became of those too
            why.append(why_number(worst(numbers)))
        groups.setdefault(" and ".join(_SENTENCES.get(words, words) for words in why), []).append(result)
    if len(groups) == 1 and len(failed) > 1:
        return f"{count}: {next(iter(groups))} in {'both' if len(failed) == 2 else f'all {len(failed)}'}"
    reasons = [f"{text} in {found[0].case.title if len(found) == 1 else len(found)}" for text, found in groups.items()]
    more = f"; {len(reasons) - _NAMES} other reasons" if len(reasons) > _NAMES else ""
    return f"{count}: {'; '.join(reasons[:_NAMES])}{more}"


def inconclusive(results: Sequence[CaseResult]) -> tuple[list[Line], list[Finding]]:
    """Lines on the first case that noise leaves undecided, with numbers and advice; and all such verdicts."""
    open_ones = [
        (r, v)
        for r in results
        for v in r.verdicts
        if v.is_judged and v.code in _NOISE and (v.code != "not-confirmed" or "--distbench-confirm" in v.reason)
    ]
    if not open_ones:
        return [], []
    result, verdict = min(open_ones, key=lambda one: (one[0].confirmation is None, _NOISE.index(one[1].code)))
    turns, others = result.confirmation, len(open_ones) - 1
    now, then = quantity(verdict.current, verdict.unit), quantity(verdict.baseline, verdict.unit)
    numbers = f"{now}, baseline {then} ({change(verdict)})"
    if verdict.statistic.startswith("A/B") and turns is not None:
        floor = verdict.facts.get("noise_floor")
        noise = f"; A/A (noise floor): {abs(float(floor)) * 100:.1f} %" if floor is not None else ""
        pairs = f"{verdict.launches} pairs in {about(turns.took_s)}"
        numbers_line = f"    A/B with {turns.revision}, {pairs}: candidate {numbers}{noise}"
    elif result.reference.kind == "paired":
        numbers_line = f"    A/B with {result.reference.name}, {counted(verdict.launches, 'pair')}: candidate {numbers}"
    else:
        numbers_line = f"    {numbers} by the stored baseline, {counted(verdict.launches, 'launch')}"
    with_all = f"with {LAST_LOOK} pairs a slowdown of" if verdict.statistic.startswith("A/B") else "a slowdown of"
    what = "pair" if verdict.statistic.startswith("A/B") else "launch"
    used_up = f"{counted(verdict.launches, what)} {'is' if verdict.launches == 1 else 'are'} the most that a run makes"
    if "--distbench-confirm" in f"{verdict.reason}{result.unconfirmed}":
        used_up = "the time for confirmation was used up"
    elif result.unconfirmed:
        used_up = result.unconfirmed
    elif verdict.code == "machine-busy":
        used_up = "other processes kept the machine busy"
    mde = f"{with_all} {format_percent(verdict.mde)} is detectable; " if verdict.mde is not None else ""
    more = f" (and {others} more {plural(others, 'timing')})" if others else ""
    used = load([result])
    busy = f" (other processes used {used[0]:.1f} of {used[1]} cores)" if used is not None else ""
    lines = [
        f"? {result.case.title} {metric_text(verdict)}{more}: code and noise cannot be told apart ({verdict.code})",
        numbers_line,
        f"    {mde}stopped because {used_up}",
        *(["    give it time:     --distbench-confirm=auto:300"] if result.reference.kind == "stored" else []),
        *([f"    quieter machine:  distbench doctor{busy}"] if used is None or used[0] >= _BUSY_CORES else []),
        "    longer loop:      more steps in the script make it quieter"
        if verdict.name == WALL_TIME
        else f"    longer loop:      more iterations of {verdict.name} in a launch make it quieter",
    ]
    return [Line(text, "doubt") for text in lines], [v for _, v in open_ones]


_BUSY_CORES = 0.1  # that other processes used: below it there is nothing to end

_NOISE = ("noise", "launches-used-up", "machine-busy", "not-confirmed")
"""Reasons that more time, a quieter machine or a longer loop resolve."""


def load(results: Iterable[CaseResult]) -> tuple[float, int] | None:
    """(median number of cores that other processes used during launches, cores of the host), or None if unknown."""
    used = [(x.foreign_cores, r.environment.cores) for r in results for x in r.launches if x.foreign_cores is not None]
    return (statistics.median(cores for cores, _ in used), used[0][1]) if used else None


def _most_recorded(result: CaseResult) -> int:
    return _RECORDED if any(v.is_judged and v.is_noisy for v in result.verdicts) else FEWEST_EXACT


def next_steps(results: Sequence[CaseResult], commands: Mapping[str, str]) -> list[Line]:
    """Lines that say what to do about cases without a baseline, and how long that takes at most.

    Args:
        commands: commands to type: ``record`` the cases without a baseline, ``keep`` what was recorded, or compare
            ``against`` a branch; impossible ones are absent.
    """
    without = [r for r in results if r.reference.kind == "stored" and r.lacks_baseline]
    if not without:
        return []
    seconds = sum(_most_recorded(r) * statistics.median(x.wall_s for x in r.launches) for r in without)
    steps = [
        (f"record baselines (up to {about(seconds)})", "record"),
        ("keep them", "keep"),
        ("or compare with a branch", "against"),
    ]
    known = [(what, commands[name]) for what, name in steps if commands.get(name)]
    width = max((len(what) for what, _ in known), default=0) + 1
    used, cores = load(without) or (0.0, 1)
    busy = f"Busy machine: other processes used {used:.1f} of {cores} cores: a baseline recorded now would be noisy"
    return [
        *([Line(busy, "doubt")] if used > BUSIER_SHARE * cores else []),
        Line("Next steps"),
        *(Line(f"  {f'{what}:':{width}}  {command}") for what, command in known),
        Line("All numbers: -v, or --distbench-report run.html   The machine: distbench doctor"),
    ]


def sentence(results: Sequence[CaseResult], *, missing: int = 0, where: str = "") -> Line:
    """The run in one line: ``2 cases: 1 passed, 1 FAILED (communication changed)   report: run.html``.

    ``missing`` baselines have lost their test, and fail the run.
    """
    groups = grouped((STATES[state_of(result)][1], result) for result in results)
    order = sorted(groups, key=[words for _, words in STATES.values()].index, reverse=True)
    parts = []
    for words in order:
        cases = groups[words]
        why = _why(cases) if words == "FAILED" else ""
        why = "passes; --distbench-strict fails it" if words == "INCONCLUSIVE" else why
        parts.append(f"{len(cases)} {words}{why and f' ({why})'}")
    parts += [f"{counted(missing, 'baseline')} WITHOUT A TEST"] if missing else []
    text = f"{counted(len(results), 'case')}: {', '.join(parts)}"
    severity = "failure" if missing or "FAILED" in groups else "doubt" if "INCONCLUSIVE" in groups else "plain"
    return Line(f"{text}{where and f'   {where}'}", severity)  # type: ignore[arg-type] # a literal


def on_one_screen(lines: Sequence[Line], last: Sequence[Line]) -> list[Line]:
    """The lines, wrapped and cut to what one screen holds; ``last`` is shown in any case, completely."""
    room = MOST_LINES - len(last) - 1  # for the sentence
    wrapped = [part for line in lines for part in _wrapped(line)]
    more = len(wrapped) - room + 1
    shown = [*wrapped[: room - 1], Line(f"{more} more lines (-v shows all)")] if len(wrapped) > room else wrapped
    return [*shown, *last]


def _wrapped(line: Line) -> list[Line]:
    if len(line.text) <= LONGEST:
        return [line]
    indent = re.match(r" *", line.text)[0]  # type: ignore[index] # it matches anything
    parts = textwrap.wrap(
        line.text,
        LONGEST,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        max_lines=_MOST_OF_A_TEXT,
        placeholder=" ...",
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return [Line(part, line.severity) for part in parts]
