"""A/B comparisons as text: what moved between the reference and this tree, and what could have been seen."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.case_text import unaccepted_headline
from pytest_distbench.report.causes import cause_lines
from pytest_distbench.report.tables import change, layout, limit, quantity
from pytest_distbench.units import format_bytes

HEADER = ("", "metric", "this tree", "reference", "change", "limit", "finds", "pairs")
CHANGE = "change: mean over pairs, which is what is judged"
FINDS = "finds: the smallest slowdown called regressed in nine of ten runs, with as many pairs as a run makes at most"
_SHOWN_CASES = 20
_SHOWN_METRICS = 6


def pair_table(result: CaseResult, *, show_all: bool) -> list[str]:
    """The table of one case. Without ``show_all`` metrics that are unchanged are counted, not listed."""
    judged = [v for v in result.verdicts if v.is_judged]
    shown = [v for v in judged if show_all or v.kind != "unchanged"]
    lines = layout(HEADER, [_row(v) for v in shown], left=2) if shown else []
    hidden = len(judged) - len(shown)
    return lines + ([f"  {hidden} more unchanged (-v shows all)"] if hidden else [])


def overview(results: Sequence[CaseResult]) -> list[str]:
    """One table for all cases, with what each was able to find; of many unchanged metrics the first and the last."""
    rows = []
    for result in results[:_SHOWN_CASES]:
        name = f"{result.case.test.rpartition('::')[2]}[{result.case.key.case_id}]"
        judged = [v for v in result.verdicts if v.is_judged]
        ends = judged if len(judged) <= _SHOWN_METRICS else [judged[0], judged[-1]]
        for verdict in (v for v in judged if v.kind != "unchanged" or v in ends):
            mark, *cells = _row(verdict)
            rows.append((mark, name, *cells))
            name = ""
    lines = layout(("", "test", *HEADER[1:]), rows, left=3) if rows else []
    if len(results) > _SHOWN_CASES:
        lines.append(f"  {len(results) - _SHOWN_CASES} more cases (-v shows all)")
    return [*lines, CHANGE, FINDS]


def headline(result: CaseResult) -> str:
    """One line: metric, change, against what, limit, how many; and whether the fingerprint changed with it."""
    changed = next((v.reason for v in result.verdicts if v.kind == "changed"), "")
    failed = [v for v in result.verdicts if v.kind == "regressed"]
    if not failed:
        return f"fingerprint changed against {result.reference.name}: {changed}"
    worst = max(failed, key=lambda v: (METRIC_KINDS[v.better].rule == "curve", abs((v.ratio or 1.0) - 1.0)))
    of = f", {len(failed)} of {len(result.verdicts)} metrics" if len(failed) > 1 else ""
    of += "; the fingerprint changed" if changed else ""
    is_noisy = worst.is_noisy
    moved = change(worst) if is_noisy and worst.ratio is not None else worst.reason
    limits = f" (limit {limit(worst)})" if is_noisy and worst.limit is not None else ""
    return f"{_name(worst)} {moved} against {result.reference.name}{limits}{of}"


def regression_text(result: CaseResult, *, rerun_command: str) -> str:
    """Explain a regression against a reference."""
    reasons = [f"{_name(v)}: {v.reason}" for v in result.verdicts if v.kind == "regressed" and v.reason][:8]
    table = pair_table(result, show_all=False)
    causes = cause_lines(result)
    return "\n".join(
        [headline(result), "", *table, "", *reasons, *causes, *_versions(result), "", f"again:  {rerun_command}"]
    )


def unaccepted_text(result: CaseResult, unaccepted: Sequence[Verdict], *, rerun_command: str) -> str:
    """Explain verdicts that fail only because the run was told so."""
    reasons = [f"{_name(v)}: {v.reason}" for v in unaccepted if v.reason][:8]
    table = pair_table(result, show_all=False)
    text = [
        unaccepted_headline(unaccepted),
        "",
        *table,
        "",
        *reasons,
        *_versions(result),
        "",
        f"again:  {rerun_command}",
    ]
    return "\n".join(text)


def missing_text(result: CaseResult) -> str:
    """Say that there is nothing to compare with."""
    return f"{result.verdicts[0].reason or 'nothing to compare with'}: measured, not judged"


def _versions(result: CaseResult) -> list[str]:
    sides = (
        ("reference", result.reference.name, result.reference.software),
        ("this tree", "", result.environment.software),
    )
    return [
        f"{side}  " + "  ".join(filter(None, [name, ", ".join(f"{k} {s[k]}" for k in ("torch", "python") if k in s)]))
        for side, name, s in sides
    ]


def _row(verdict: Verdict) -> tuple[str, ...]:
    seen = verdict.detectable
    return (
        VERDICT_KINDS[verdict.kind].mark,
        _name(verdict),
        quantity(verdict.current, verdict.unit),
        quantity(verdict.baseline, verdict.unit),
        change(verdict),
        limit(verdict),
        "" if seen is None else f"+{seen:.1%}" if seen <= 1 else "> +100%",
        str(verdict.launches),
    )


def _name(verdict: Verdict) -> str:
    if set(verdict.at) == {"message_bytes"}:
        return f"{verdict.metric.partition('[')[0]} at {format_bytes(int(verdict.at['message_bytes']))}"
    return verdict.metric
