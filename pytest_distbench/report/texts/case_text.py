"""Texts of failed tests. The first line tells the story in about 100 characters; JUnit and summaries show only it.

One text per kind of failure, whatever the case was compared with: a stored baseline, or launches beside it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from pytest_distbench.judging.causes import cause_lines
from pytest_distbench.judging.comparable import software_changes
from pytest_distbench.judging.judgement import NOT_JUDGED, worst
from pytest_distbench.judging.update_policy import why_not_stored
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.metric import PEAK_MEMORY
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.texts.escape import escape
from pytest_distbench.report.texts.verdict_tables import case_table, is_of_fastest_iterations, note_on_change
from pytest_distbench.report.texts.words import change, limit, metric_text, quantity, words_for

_MOST_REASONS = 8


def regression_text(result: CaseResult, *, command: str) -> str:
    """Explain a regression, or what is beyond a bound: what moved, by how much, against what, and what explains it."""
    failed = [v for v in result.verdicts if v.is_failure and v.kind != "changed"]
    left_open = [v for v in result.verdicts if v.reason.startswith(NOT_JUDGED)]
    return _text(result, regression_headline(result), [*failed, *left_open[:1]], command=command, causes=True)


def unaccepted_text(result: CaseResult, unaccepted: Sequence[Verdict], *, command: str) -> str:
    """Explain verdicts that fail only because the run was told so: which, why, and what to do."""
    return _text(result, unaccepted_headline(unaccepted), unaccepted, command=command, causes=False)


def _text(result: CaseResult, headline: str, verdicts: Sequence[Verdict], *, command: str, causes: bool) -> str:
    reasons = [escape(f"{metric_text(v)}: {v.reason}") for v in verdicts if v.reason]
    reasons = [reason for reason in reasons if reason != escape(headline)]
    return "\n".join(
        [
            escape(headline),
            "",
            *(line.text for line in case_table(result, show_all=False)),
            *(line.text for line in note_on_change(result.verdicts) if result.reference.kind == "stored"),
            "",
            *reasons[:_MOST_REASONS],
            *(cause_lines(result) if causes else []),
            *comparison_lines(result),
            "",
            *_next_steps(
                result, command, intended="this change is intended" if causes else "what was measured is right"
            ),
        ]
    )


def _next_steps(result: CaseResult, command: str, *, intended: str) -> list[str]:
    """An update accepts a change, and no value beyond a bound."""
    if any(v.kind == "beyond" for v in result.verdicts):
        return [
            "no update accepts this: mend what was measured, or change the bound where it was set",
            f"again:  {command}",
        ]
    regressed = [v for v in result.verdicts if v.kind == "regressed"]
    if any(v.current is None and METRIC_KINDS[v.better].rule != "steps" for v in regressed):
        return ["no update accepts a metric without a value: mend what was measured", f"again:  {command}"]
    return [
        f"again:  {command}" if result.reference.kind == "paired" else f"If {intended}:  {command} --distbench-update"
    ]


def lost_text(names: Sequence[EntryName], paths: Sequence[str], *, folder: str, command: str) -> str:
    """Explain that cases of the baseline were not measured: which, where they are stored, and what takes them out."""
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
            f"again:  {command}",
        ]
    )


def refused_text(result: CaseResult) -> str:
    """Explain why an update did not store what it measured."""
    return "\n".join(
        [
            refused_headline(result),
            "",
            *(line.text for line in case_table(result, show_all=False)),
            "",
            "what was stored before is unchanged",
        ]
    )


def missing_text(result: CaseResult, *, platforms: Sequence[str], command: str) -> str:
    """Say that there is nothing to compare with, where there is something, and how to record it."""
    if result.reference.kind == "paired":
        return missing_headline(result)
    have = ", ".join(platforms) or "none"
    return (
        f"{missing_headline(result)} (have: {have})\n\n"
        f"looked in {result.reference.path} for {result.case.key}\nrecord it:  {command} --distbench-update=new"
    )


def refused_headline(result: CaseResult) -> str:
    """One line: what the measured numbers lack to be a baseline."""
    return f"not stored: {why_not_stored(result.launches, result.verdicts)}"


def missing_headline(result: CaseResult) -> str:
    """One line: what there is nothing of."""
    if result.reference.kind == "paired":
        return f"{result.verdicts[0].reason or 'nothing to compare with'}: measured, not judged"
    return f"no baseline for {result.environment.platform}"


def nothing_judged_headline(result: CaseResult) -> str:
    """One line: what the body recorded instead, and what to do."""
    shown = ", ".join(v.metric for v in result.verdicts if v.name != PEAK_MEMORY) or "nothing"
    if any(m.is_judged and m.name != PEAK_MEMORY for m in result.launches[-1].measurements):
        return f"nothing that was measured is among the metrics= of the test's marker; there are {shown}"
    return (
        f"nothing was measured that can be judged: the body recorded {shown}; give what matters to rank.record "
        "with better='lower', 'higher' or 'exact', or use rank.timed. A body that only asserts: distbench.check"
    )


def unaccepted_headline(unaccepted: Sequence[Verdict]) -> str:
    """One line: the first metric, its verdict, why, how many, and the option that makes it fail."""
    first = unaccepted[0]
    option = f"--{VERDICT_KINDS[first.kind].fails_under}"
    more = f" (and {len(unaccepted) - 1} more)" if len(unaccepted) > 1 else ""
    return f"{metric_text(first)}: {first.kind}: {first.reason or change(first)}{more}; {option}"


def regression_headline(result: CaseResult) -> str:
    """One line: metric, change, against what, limit, how many; and whether the fingerprint changed with it."""
    against = f" against {result.reference.name}" if result.reference.name else ""
    changed = next((v.reason for v in result.verdicts if v.kind == "changed"), "")
    failed = [v for v in result.verdicts if v.is_failure and v.kind != "changed"]
    if not failed:
        return f"fingerprint changed{against}: {changed}"
    return _movement(result, failed, against) + ("; the fingerprint changed" if changed else "")


def _movement(result: CaseResult, failed: Sequence[Verdict], against: str) -> str:
    first = worst(failed)
    of = _how_many(result, first, failed)
    name, kind = metric_text(first), METRIC_KINDS[first.better]
    if first.kind == "beyond":
        return f"{name}: {first.reason}{of}"
    other = words_for(result).name
    if first.kind != "regressed":
        return f"{name}{against}: {first.kind}: {first.reason or change(first)}{of}"
    if first.current is None:
        return f"{name}{against}: no value ({first.reason}), {other} {quantity(first.baseline, first.unit)}{of}"
    if kind.is_of_training and first.reason:
        return f"{name}{against}: {first.reason.partition(';')[0]}{of}"
    if kind.rule == "memory" and first.ratio is not None and first.ratio <= 1 + (first.limit or 0.0):
        return f"{name}{against}: {first.reason}{of}"  # what decided is not the number that is shown
    if kind.rule == "exact":
        now, then = quantity(first.current, first.unit), quantity(first.baseline, first.unit)
        return f"{name}{against}: {now}, {other} {then} (exact){of}"
    is_fastest = result.reference.kind == "stored" and is_of_fastest_iterations(first)
    moved = change(first) + (" in its fastest iterations" if is_fastest else "")
    return f"{name} {moved or first.reason}{against} (limit {limit(first)}){of}"


def _how_many(result: CaseResult, first: Verdict, failed: Sequence[Verdict]) -> str:
    """How far it goes: over the sizes of its sweep, or over the metrics."""
    if "message_bytes" in first.at:
        same = [v for v in result.verdicts if v.name == first.name]
        return f", {sum(v.is_failure for v in same)} of {len(same)} sizes"
    return f", {len(failed)} of {len(result.verdicts)} metrics" if len(failed) > 1 else ""


def comparison_lines(result: CaseResult) -> list[str]:
    """What was compared with what, in which software, and what differs."""
    stored = result.reference.software
    current = result.launches[0].software if result.launches else {}
    if result.reference.kind == "paired":
        sides = [("reference", result.reference.name, stored), ("this tree", "", current)]
        lines = ["  ".join(filter(None, [side, name, _versions(software)])) for side, name, software in sides]
    else:
        platform = result.environment.platform
        lines = [f"this run  {platform}  {_versions(current)}"]
        if any(v.baseline is not None for v in result.verdicts):
            lines.insert(0, f"baseline  {platform}  {_versions(stored)}  {result.reference.path}")
            lines[1:1] = [
                f"          of {name}, whose test is gone: this one has its parameters and metrics; "
                "--distbench-update=new moves it"
                for name in result.reference.gone
            ]
        if (turns := result.confirmation) is not None and turns.launches:
            beside = f"this tree ({short(turns.here)}) and twice {turns.revision}, which recorded the baseline"
            lines.append(f"in turns  {beside}: {len(turns.launches)} times in {turns.took_s:.0f} s")
    return lines + ([f"differs   {what}" for what in software_changes(stored, current)] if stored else [])


def short(commit: str) -> str:
    """A commit as texts name it, with what follows the hash."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]*", r"\1", commit)


def _versions(software: dict[str, str]) -> str:
    return ", ".join(f"{k} {software[k]}" for k in ("torch", "cuda", "nccl", "python") if k in software)
