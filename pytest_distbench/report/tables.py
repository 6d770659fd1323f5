"""Tables of verdicts as plain text: one for collective sweeps, in nccl-tests' order of columns, one for all else."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import GIGABYTE, format_bytes, format_change, format_quantity


def layout(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Align columns: the first ``left`` to the left, the others to the right. No trailing blanks."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def is_sweep(result: CaseResult) -> bool:
    """Whether the case measured latencies over message sizes."""
    return any("message_bytes" in v.at for v in result.verdicts)


def case_table(result: CaseResult, *, show_all: bool) -> list[str]:
    """The table of one case. Without ``show_all`` metrics within their limits are counted, not listed."""
    if is_sweep(result):
        return _sweep_table(result, show_all=show_all)
    judged = [v for v in result.verdicts if v.is_judged]
    shown = [v for v in result.verdicts if show_all or v.kind != "unchanged"]
    lines = layout(METRIC_HEADER, [metric_row(v) for v in shown], left=2) if shown else []
    hidden = len(judged) - sum(v.is_judged for v in shown)
    return lines + ([f"  {hidden} more within their limits (-v shows all)"] if hidden else [])


METRIC_HEADER = ("", "metric", "this run", "baseline", "change", "limit", "n")


def metric_row(verdict: Verdict) -> tuple[str, ...]:
    """One metric as a row under :data:`METRIC_HEADER`."""
    return (
        VERDICT_KINDS[verdict.kind].mark,
        verdict.metric,
        quantity(verdict.current, verdict.unit),
        quantity(verdict.baseline, verdict.unit) if verdict.is_judged else "",
        change(verdict),
        limit(verdict),
        str(verdict.launches) if verdict.launches else "",
    )


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, ``-`` where there is none."""
    return "-" if value is None else format_quantity(value, unit)


def change(verdict: Verdict) -> str:
    """The change against the baseline, signed, as the metric itself moves."""
    if verdict.kind == "changed":
        return "changed"
    return "" if verdict.ratio is None or not verdict.is_judged else format_change(verdict.ratio)


def limit(verdict: Verdict) -> str:
    """The largest accepted change towards worse."""
    if verdict.limit is None or not verdict.is_judged:
        return ""
    kind = METRIC_KINDS[verdict.better]
    return "exact" if kind.repeats_exactly and verdict.limit == 0.0 else kind.limit_text(verdict.limit)


def _sweep_table(result: CaseResult, *, show_all: bool) -> list[str]:
    points: dict[int, dict[str, Verdict]] = {}
    for verdict in result.verdicts:
        if "message_bytes" in verdict.at:
            points.setdefault(int(verdict.at["message_bytes"]), {})[verdict.name] = verdict
    rows = []
    hidden = 0
    for size, found in sorted(points.items()):
        time = found.get("latency")
        if time is None or time.current is None:
            continue
        worst = max(found.values(), key=lambda v: (v.kind == "regressed", v.kind != "unchanged"))
        if not show_all and worst.kind == "unchanged":
            hidden += 1
            continue
        factor = float(time.facts.get("busbw_factor", 0.0))
        bandwidth = size / time.current / GIGABYTE
        wrong = found.get("wrong_elements")
        rows.append(
            (
                VERDICT_KINDS[worst.kind].mark,
                format_bytes(size),
                f"{time.current * 1e6:.1f}",
                f"{bandwidth:.3f}",
                f"{bandwidth * factor:.3f}" if factor else "-",
                quantity(wrong.current, "") if wrong else "",
                f"{time.baseline * 1e6:.1f}" if time.baseline else "-",
                change(time),
                limit(time),
                str(time.launches),
            )
        )
    header = ("", "size", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "baseline us", "change", "limit", "n")
    lines = layout(header, rows) if rows else []
    return lines + (
        [f"  {hidden} size{'s' * (hidden != 1)} within their limits not shown (-v shows all)"] if hidden else []
    )
