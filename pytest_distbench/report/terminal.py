"""The distbench section at the end of a run, as lines: summary table, counts, what was written, what is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_distbench.judging.fingerprint_rule import METRIC as FINGERPRINT
from pytest_distbench.judging.software import software_changes
from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.kinds import VERDICT_KINDS, VerdictName
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.pair_text import overview, pair_table
from pytest_distbench.report.tables import case_table, change, is_sweep, layout, limit, quantity
from pytest_distbench.units import format_bytes

_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?")
_NOTICEABLE = 0.01
FAST_SIDE = "change: of the fast side of the launches, which is what is judged"
_SHOWN_CASES = 20
_SHOWN_NAMES = 10


def summary_lines(results: Sequence[CaseResult], *, verbosity: int, record_command: str, folder: Path) -> list[str]:
    """Everything below the section's title."""
    compared = [r for r in results if not r.update and r.verdicts]
    paired = [r for r in compared if r.reference.kind == "paired"]
    failed = sum(r.launches[-1].outcome == "failed" for r in results)
    updated = [r for r in results if r.update]
    lines: list[str] = []
    if verbosity > 0:
        for result in results:
            table = pair_table if result.reference.kind == "paired" else case_table
            lines += [_title(result), *table(result, show_all=True), ""]
    elif verbosity == 0:
        lines += [*(overview(paired) if paired else _overview(results)), ""]
    if compared:
        lines += _counts(compared)
    lines += _inconclusive(compared)
    lines += _needless(compared)
    lines += _drift(results)
    if updated:
        lines += _updates(updated, folder)
    if failed:
        lines.append(f"{failed} {_cases(failed)} failed in a rank: nothing judged, nothing stored")
    stored = [r for r in compared if r.reference.kind == "stored"]
    missing = [r for r in stored if {v.kind for v in r.verdicts if v.is_judged} == {"missing"}]
    if missing:
        platform = missing[0].environment.platform
        count = f"{len(missing)} of {len(compared)} {_cases(len(compared))}"
        lines.append(f"no baseline for {count} on {platform}: measured, not judged")
        lines.append(f"record them:  {record_command}")
    return lines


def unused_lines(unused: Sequence[EntryName], *, pruned: bool) -> list[str]:
    """The stored entries that no test used, by name: all of them where they were deleted."""
    if not unused:
        return []
    count = f"{len(unused)} stored {'entry was' if len(unused) == 1 else 'entries were'} not used"
    shown = unused if pruned else unused[:_SHOWN_NAMES]
    more = [f"  and {len(unused) - len(shown)} more"] if len(shown) < len(unused) else []
    return [
        f"{count}{', and deleted' if pruned else '; --distbench-prune deletes them'}:",
        *(f"  {n}" for n in shown),
        *more,
    ]


def _drift(results: Sequence[CaseResult]) -> list[str]:
    """What software changed since the baselines were taken; once for all cases."""
    found = Counter(
        what
        for r in results
        if r.reference.software
        for what in software_changes(r.reference.software, r.environment.software)
    )
    cases = [f"{what} ({number} {_cases(number)})" for what, number in found.items()]
    return [f"software differs from the baselines': {', '.join(cases)}"] if cases else []


def _title(result: CaseResult) -> str:
    case = result.case
    function = case.test.rpartition("::")[2]
    group = f"{case.world_size} ranks, {case.key.backend}, {case.key.launcher} launcher"
    return f"{function}[{case.key.case_id}]  {group}, {len(result.launches)} launches"


def _overview(results: Sequence[CaseResult]) -> list[str]:
    """A few telling rows per case: of a sweep the smallest and the largest message and the largest change."""
    rows = []
    for result in results[:_SHOWN_CASES]:
        name = f"{result.case.test.rpartition('::')[2]}[{result.case.key.case_id}]"
        for verdict in _telling(result):
            what = verdict.name if "message_bytes" in verdict.at else verdict.metric
            if "message_bytes" in verdict.at:
                what += f" at {format_bytes(int(verdict.at['message_bytes']))}"
            rows.append(
                (
                    VERDICT_KINDS[verdict.kind].mark,
                    name,
                    what,
                    quantity(verdict.current, verdict.unit),
                    quantity(verdict.baseline, verdict.unit),
                    change(verdict),
                    limit(verdict),
                    str(verdict.launches),
                )
            )
            name = ""
    lines = layout(("", "test", "metric", "this run", "baseline", "change", "limit", "n"), rows, left=3) if rows else []
    if any(_is_of_the_fast_side(v) for result in results[:_SHOWN_CASES] for v in _telling(result)):
        lines.append(FAST_SIDE)
    if len(results) > _SHOWN_CASES:
        lines.append(f"  {len(results) - _SHOWN_CASES} more cases (-v shows all)")
    return lines


def _is_of_the_fast_side(verdict: Verdict) -> bool:
    """Whether the change shown is clearly not that of the two values beside it."""
    if verdict.ratio is None or verdict.current is None or not verdict.baseline:
        return False
    return abs(verdict.ratio - verdict.current / verdict.baseline) > _NOTICEABLE


def _telling(result: CaseResult) -> Iterable[Verdict]:
    judged = [v for v in result.verdicts if v.is_judged and (v.current is not None or v.kind == "changed")]
    if not is_sweep(result):
        return judged
    times = sorted((v for v in judged if v.unit == "s"), key=lambda v: int(v.at.get("message_bytes", 0)))
    if not times:
        return judged[:3]
    largest_change = max(times, key=lambda v: abs((v.ratio or 1.0) - 1.0))
    chosen = {times[0].metric, largest_change.metric, times[-1].metric}
    return [v for v in judged if v.metric in chosen or v.kind == "changed"]


def _counts(results: Sequence[CaseResult]) -> list[str]:
    counts = Counter(v.kind for r in results for v in _counted(r))
    total = sum(counts.values())
    is_paired = any(r.reference.kind == "paired" for r in results)
    parts = [
        f"{counts[name]} {(is_paired and kind.paired_words) or kind.words}"
        for name, kind in sorted(VERDICT_KINDS.items(), key=lambda item: not item[1].is_answer)
        if counts[name]
    ]
    launches = sum(len(r.launches) + len(r.reference.launches) for r in results)
    counted = f"{total} metric{'s' * (total != 1)} of {len(results)} {_cases(len(results))}"
    return [f"{counted} in {launches} launch{'es' * (launches != 1)}: {', '.join(parts) or 'nothing judged'}"]


def _counted(result: CaseResult) -> list[Verdict]:
    """The verdicts that the tables tell too: of a fingerprint only what is not as it should be."""
    judged = [v for v in result.verdicts if v.is_judged]
    as_it_should = {"unchanged", "missing"} if all(v.kind == "missing" for v in judged) else {"unchanged"}
    return [v for v in judged if v.metric != FINGERPRINT or v.kind not in as_it_should]


def _cases(number: int) -> str:
    return "case" if number == 1 else "cases"


def _inconclusive(results: Sequence[CaseResult]) -> list[str]:
    """What was not judged and why: a line per case and reason, numbers aside."""
    lines = []
    for result in results:
        unclear = {name for name, kind in VERDICT_KINDS.items() if kind.is_told}
        unclear |= {"missing"} if result.reference.kind == "paired" else set()
        groups: dict[tuple[VerdictName, str], list[Verdict]] = {}
        for verdict in result.verdicts:
            if verdict.kind in unclear:
                groups.setdefault((verdict.kind, _NUMBER.sub("", verdict.reason)), []).append(verdict)
        name = f"{result.case.test.rpartition('::')[2]}[{result.case.key.case_id}]"
        for found in groups.values():
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            lines.append(f"{VERDICT_KINDS[found[0].kind].mark} {name} {found[0].metric}{more}: {found[0].reason}")
    return lines


def _needless(compared: Sequence[CaseResult]) -> list[str]:
    """Cases whose regression was expected and did not come."""
    return [
        f"xfail_perf of {r.case.test.rpartition('::')[2]}[{r.case.key.case_id}] is no longer needed: nothing regressed "
        f"({r.xfail_perf})"
        for r in compared
        if r.xfail_perf and all(v.kind in ("unchanged", "improved") for v in r.verdicts if v.is_judged)
    ][:_SHOWN_NAMES]


def _updates(results: Sequence[CaseResult], folder: Path) -> list[str]:
    counts = Counter(r.update for r in results)
    platform = results[0].environment.platform
    written = f"{counts['changed']} changed, {counts['new']} new, {counts['kept']} kept"
    if refused := counts["refused"]:
        written += f", {refused} not stored"
    lines = [f"baselines in {folder / platform}: {written}"]
    rows = []
    stored = [r for r in results if r.update in ("new", "changed")]
    for result in stored:
        name = f"{result.case.test.rpartition('::')[2]}[{result.case.key.case_id}]"
        for verdict in _telling(result):
            old = result.previous.get(verdict.metric)
            note = "new" if old is None else "regression accepted" if verdict.is_failure else ""
            metric = verdict.metric
            rows.append(
                (
                    name,
                    metric,
                    quantity(old, verdict.unit),
                    "->",
                    quantity(verdict.current, verdict.unit),
                    change(verdict) if old else "",
                    note,
                )
            )
            name = ""
    if rows:
        lines += ["  " + line for line in layout(("test", "metric", "old", "", "new", "change", ""), rows, left=2)]
    few = [r for r in stored if len(r.launches) < FEWEST_LAUNCHES and any(v.is_noisy for v in r.verdicts)]
    if few:
        lines.append(
            f"? {len(few)} {_cases(len(few))} stored with fewer than {FEWEST_LAUNCHES} launches: "
            "their noise is not known, later runs can hardly judge against them"
        )
    return [*lines, f"review with: distbench baseline diff --baselines {folder}"]
