"""Content of the HTML report: cases with every launch, charts and tables; and the file.

What must be readable without a script is HTML, everything else compressed data that a script draws.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape as quote
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, BinaryIO

import msgspec

from pytest_distbench.judging.stats import median_interval
from pytest_distbench.machine.secrets import mask_text
from pytest_distbench.records.environment import Prices
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import FINGERPRINT, Sample
from pytest_distbench.records.options import OPTIONS, SHORT
from pytest_distbench.records.reasons import VERDICTS, Severity, severity_order
from pytest_distbench.records.run import STATISTICS, CaseResult, Finding, RunRecord
from pytest_distbench.report import escape
from pytest_distbench.report.page import Chart, Charts, charts_above, charts_of, grid, if_any, short
from pytest_distbench.report.tables import TABLES
from pytest_distbench.report.tables import VERDICTS as VERDICT_TABLE
from pytest_distbench.report.tables.table import DataTable
from pytest_distbench.report.terminal import ending_lines, headline, next_steps, run_lines, trace_lines, updated_lines
from pytest_distbench.report.verdicts import (
    accept_command,
    case_how,
    cause_lines,
    comparison_lines,
    launch_text,
    launches_by_metric,
    measured,
    place_lines,
    remarks_of,
    untold,
    values_of,
)
from pytest_distbench.units import about, counted, format_moment, quantity

MEASURED = "measured"  # state of a case with no verdict, and of its numbers
SKIPPED = "skipped"  # state of a case that did not run
BROKEN = "launch failed"  # state of a case whose ranks did not come to their end

UNKNOWN_COMMAND = "pytest --distbench-update=new"  # of a run whose record does not say how it records

_SEVERITIES: list[Severity] = ["failure", "doubt", "plain"]

_AS_CASES = "verdicts"  # the table whose rows are those of the cases


_HEADINGS = {"mark": "", **{column.name: column.heading for column in VERDICT_TABLE.columns}}
_HEADINGS |= {"interval": "median in", "noise": "noise"}
"""The interval is that of the median of the launches, in nine of ten runs, if they are enough; the noise is the
standard deviation of the launches, as a share of their mean."""

_CLASSES = {
    "mark": "",
    "metric": "wrap metric",
    "verdict": "wrap",
    "ratio": "r wrap change",
    "current": "r wrap",
    "baseline": "r wrap",
    "threshold": "r",
    "statistic": "extra",
    "mde": "r",
    "interval": "r wrap extra",
    "noise": "r extra",
    "launches": "r extra",
}

COLUMNS = [(name, str(_HEADINGS[name]), look) for name, look in _CLASSES.items()]
"""Columns of a case's rows: name, heading and CSS class."""


OtherRun = tuple[str, dict[str, dict[str, list[float]]]]
"""A run to compare with: its name, and the values of its launches by case and metric."""


def page_of(
    record: RunRecord,
    tables: Mapping[str, DataTable],
    *,
    other: OtherRun | None = None,
    charts: Charts | None = None,
    prices: Prices | None = None,
) -> dict[str, Any]:
    """The HTML report of a run with these tables, as ``page.js`` takes it; most empty fields are left out.

    ``headings`` are those of the cases shown first, of the other cases, and of the tables. ``kinds`` are the states of
    cases with their severity and meaning, the most severe first. Tables come with their summary, the charts above
    them, and above the cases with the class of their words.

    Args:
        charts: function that draws a case's charts from other files: a row of :data:`PAGE_FILES`.
    """
    kinds: dict[str, tuple[Severity, str]] = {
        BROKEN: ("failure", "A rank failed, so nothing was judged."),
        **{name: (row.severity, row.means) for name, row in VERDICTS.items()},
        MEASURED: ("plain", "Recorded for information, not judged."),
        SKIPPED: ("plain", "It did not run; the case says why."),
    }
    order = list(kinds)
    cases = [_case(result, record, charts or {}) for result in record.results]
    cases.sort(key=lambda case: ("is_first" not in case, order.index(case["state"])))
    outcomes = {result.outcome for result in record.results}
    first = "Would have failed (advisory)" if "advisory" in outcomes else "Failed"
    if {"advisory", "failed"} <= outcomes:
        first = "Failed, or would have (advisory)"
    rest = "The rest" if any("is_first" in case for case in cases) else "Cases"
    found = Counter(case["state"] for case in cases)
    notes = [*ending_lines(record), *run_lines(record.results, record.remarks)]
    later = [
        *next_steps(record.results, {"record": record.record_command or UNKNOWN_COMMAND}),
        *updated_lines(record.results, Path("baselines")),
    ]
    if not outcomes & {"advisory", "failed"}:
        notes, later = [*notes, *later], []
    above = {name: TABLES[name].marks for name in tables if name in TABLES and TABLES[name].marks}
    below = [name for name in tables if name not in (_AS_CASES, *above)]
    drawn = [_table(name, tables[name], record, prices) for name in below]
    matrices = [(*_table(name, tables[name], record, prices)[:2], {**marks}) for name, marks in above.items()]
    return {
        "title": f"distbench: {headline_of(record)}",
        "headings": (first, rest, "Tables and charts of the run"),
        "facts": list(_facts(record)),
        "kinds": kinds,
        "counts": {state: found[state] for state in kinds if found[state]},
        "columns": COLUMNS,
        "statistics": {row.shown: row.means for row in STATISTICS.values()},
        "cases": cases,
        **if_any(notes=notes, later=later, above=matrices, tables=drawn, other=other),
    }


def headline_of(record: RunRecord) -> str:
    return headline(record.results, besides=record.failed_besides, was_interrupted=record.was_interrupted)


def other_of(record: RunRecord) -> OtherRun:
    """Name of a run, made of its start and commit, and the values of its launches: as :func:`page_of` compares it."""
    name = " ".join(filter(None, [record.started[:16].replace("T", " "), record.commit[:10]]))
    cases = {}
    for result in record.results:
        samples_of, numbers = launches_by_metric(result), result.verdicts or measured(result.launches)
        cases[_key(result)] = {v.metric: _drawn(v, samples_of(v)) for v in numbers}
    return name, cases


def _key(result: CaseResult) -> str:
    under = result.case.conditions
    around = (word for pair in sorted(under.around.items()) for word in pair)
    words = [result.nodeid, result.case.run, str(under.world_size), under.backend, under.launcher, *around]
    return "|".join(words)


def _case(result: CaseResult, record: RunRecord, more: Charts) -> dict[str, Any]:
    """A case of the page.

    ``key`` is the same in other runs. ``state`` is the most severe verdict, :data:`BROKEN`, :data:`MEASURED` or
    :data:`SKIPPED`; ``note`` an outcome that does not follow from it. ``story`` says why it failed: causes, and what
    was compared with what; for a failed launch, what became of the ranks.
    """
    failed = result.outcome in ("failed", "xfailed", "advisory")
    command = again(result, record)
    judged = [v for v in result.verdicts if v.is_judged]
    if result.launches[-1].outcome == "failed":
        state, mark, severity = BROKEN, "!", "failure"
        story = [launch_text(result, rerun_command=command)]
    else:
        state = min(
            (v.kind for v in judged),
            key=[*VERDICTS].index,
            default=SKIPPED if result.outcome == "skipped" else MEASURED,
        )
        # A passing one may have a number of which nobody knows.
        worst_row = min((v.row for v in judged), key=lambda row: _SEVERITIES.index(row.severity), default=None)
        mark, severity = ("", "plain") if worst_row is None else (worst_row.mark, worst_row.severity)
        story = [*cause_lines(result), *place_lines(result, has_table=False), *comparison_lines(result)]
    charts, problems = charts_of(result, more)
    return {
        "key": _key(result),
        "title": result.case.title,
        "nodeid": result.nodeid,
        "state": state,
        "mark": mark,
        "severity": severity,
        "how": f"{case_how(result)}, {counted(len(result.launches), 'launch')}",
        "rows": list(_rows(result)),
        **if_any(
            note=result.outcome if result.outcome not in ("passed", "failed", state) else "",
            is_first=result.outcome in ("failed", "advisory"),
            headline=mask_text(result.headline),
            story=mask_text("\n".join(story)).split("\n") if failed else [],
            notes=[*(line.text for line in [*remarks_of(result), *trace_lines(result)]), *problems],
            command=command,
            accept=accept_command(result, command) if failed else "",
            charts=charts,
        ),
    }


def again(result: CaseResult, record: RunRecord) -> str:
    """The command that runs a case again in the root of the repository, with all options that decide how it runs."""
    model = result.model if "model" in record.settings else ""  # whose test is in no file
    words = ["pytest", *(["-k", result.case.title] if model else [result.nodeid])]
    for name, value in {**record.settings, **({"model": model} if model else {})}.items():
        if (option := OPTIONS.get(name)) is not None and option.is_repeated:
            is_short = name in SHORT and f" --{name}" in record.command
            spelt = f"--{name}" if is_short else f"--distbench-{name}"
            given = [spelt, value] if is_short else [f"{spelt}={value}"]
            words += (
                (given if option.metavar else [spelt])
                if option.group
                else ["-o", f"distbench_{name.replace('-', '_')}={value}"]
            )
    return shlex.join(words)


def _rows(result: CaseResult) -> Iterator[list[object]]:
    samples_of, before, turns = launches_by_metric(result), _samples(result.reference.launches), result.confirmation
    interleaved = _samples([] if turns is None else turns.baselines)
    for verdict in sorted(result.verdicts, key=lambda v: (not v.is_judged, severity_order(v.code))):
        if turns is not None and turns.baselines and result.launches_of(verdict) is not result.launches:
            whose, others = "A/B baseline commit", interleaved.get(verdict.metric, [])
        else:
            whose, others = "baseline", result.reference.metrics.get(verdict.metric) or before.get(verdict.metric, [])
        drawn = if_any(**{whose: _drawn(verdict, others)})
        yield _row(result, verdict, samples_of(verdict), drawn)
    if not result.verdicts:
        yield from (_row(result, v, samples_of(v), {}, is_measured=True) for v in measured(result.launches))


def _drawn(verdict: Finding, samples: Iterable[Sample]) -> list[float]:
    return list(map(short, values_of(verdict, samples)))


def _samples(launches: Sequence[LaunchRecord]) -> dict[str, list[Sample]]:
    return grouped((key, m) for launch in launches for m in launch.measurements for key in {m.key, m.key_over_seeds})


def _row(
    result: CaseResult,
    verdict: Finding,
    samples: Sequence[Sample],
    others: dict[str, list[float]],
    *,
    is_measured: bool = False,
) -> list[object]:
    """One metric of a case: the texts of a verdict and the numbers behind it.

    Fields: texts under :data:`COLUMNS`, severity, metric, unit, whether it is shown by default, reason, the values of
    every launch, values to compare with by name, the baseline's number, the largest accepted change as a fraction, and
    the number of this run.
    """
    values = _drawn(verdict, samples)
    is_judged = verdict.is_judged and not is_measured
    is_blind = verdict.kind == "unchanged" and bool(verdict.row.fails_under)
    kind = f"{verdict.kind}, {verdict.code.replace('-', ' ')}" if is_blind else verdict.kind
    interval = median_interval(values) if verdict.is_noisy else None
    mean = fmean(values) if len(values) > 1 and verdict.is_noisy else 0.0
    cells = {
        **{column.name: column.make_cell((result, verdict)).text for column in VERDICT_TABLE.columns},
        "mark": verdict.row.mark if verdict.is_judged else "",
        "verdict": kind if is_judged else MEASURED,
        "interval": "" if interval is None else " to ".join(quantity(end, verdict.unit) for end in interval),
        "noise": f"{stdev(values) / abs(mean):.1%}" if mean else "",
        "launches": str(verdict.launches or len(values) or ""),
    }
    severity = ("doubt" if is_blind else verdict.severity) if verdict.is_judged else "plain"
    # What changed in the communication stands in the story of the failure.
    is_explained_below = verdict.metric == FINGERPRINT and severity == "failure"
    return [
        [cells[name] for name, *_ in COLUMNS],
        severity,
        verdict.metric,
        verdict.unit,
        verdict.is_judged or is_measured,
        "" if is_explained_below else untold(verdict.reason, result.headline),
        values,
        others,
        None if verdict.baseline is None else short(verdict.baseline),
        verdict.threshold if verdict.is_judged else None,
        None if verdict.current is None else short(verdict.current),
    ]


def _facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    platforms = dict.fromkeys(result.environment.platform for result in record.results)
    devices = dict.fromkeys(result.environment.device for result in record.results)
    launches, cases = sum(len(result.launches) for result in record.results), len(record.results)
    made = f"{counted(launches, 'launch')} of {counted(cases, 'case')}"
    yield "started", format_moment(record.started)
    yield "took", f"{about(record.duration_s)}, {made}"
    yield "on", ", ".join([*platforms, *devices])
    yield "ranks", ", ".join(map(str, record.world_sizes))
    if record.commit:
        commit, dirty, _ = record.commit.partition("-dirty")
        yield "commit", f"{commit[:10]}{dirty and ', with uncommitted changes'}"
    number = f"#{record.pull_request}" if record.pull_request else ""
    places = {"branch": record.branch, "pull request": number, "host": record.host}
    yield from ((name, value) for name, value in places.items() if value)
    if record.command:
        yield "command", mask_text(record.command)
    yield "version", f"pytest-distbench {record.distbench}"


def _table(name: str, table: DataTable, record: RunRecord, prices: Prices | None) -> tuple[str, Chart, list[Chart]]:
    charts, problems = charts_above(name, record.results, prices)
    summary = re.sub(r"[`*]", "", TABLES[name].summary) if name in TABLES else ""
    types = zip(table.columns.values(), table.headings, strict=True)
    right = [kind in (int, float) for kind, heading in types if heading is not None]
    foot = [*table.footer, *problems]
    return summary, grid(name.replace("_", " "), table.header, table.texts, right=right, foot=foot), charts


WITHOUT_SCRIPT = 50  # cases that stand first, and notes, which are readable without JavaScript

_FILES = files(__package__)


def write_page(page: Mapping[str, Any], out: BinaryIO) -> None:
    """Write the page; its content-security policy allows only its own script and style, by their hashes."""
    script, style = ((_FILES / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    content = msgspec.json.encode(_safe(page))
    packed = base64.b64encode(gzip.compress(content, mtime=0)).decode()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(page['title'])}</title>",
        f"<style>{style}</style>",
        *_readable(page),
        f'<script id="data" type="application/octet-stream">{packed}</script>',
        f"<script>{script}</script>",
        "</html>",
    ]
    out.write("\n".join([*lines, ""]).encode("utf-8"))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value


def _text(text: str) -> str:
    return quote(escape(text))


def _readable(page: Mapping[str, Any]) -> Iterator[str]:
    first = [case for case in page["cases"] if "is_first" in case]
    counts = ", ".join(f"{number} {state}" for state, number in page["counts"].items())
    yield f'<main id="page"><h1>{_text(page["title"])}</h1>'
    yield f"<p>{_text(counts or 'nothing was measured')}</p>"
    for case in first[:WITHOUT_SCRIPT]:
        changes = []
        for texts, _, _, _, _, reason, *_ in case["rows"]:
            cells = {name: text for (name, *_), text in zip(COLUMNS, texts, strict=True)}
            if reason or cells["ratio"]:
                changes.append(
                    f"{cells['metric']}: {cells['verdict']} {cells['ratio']} "
                    f"({cells['baseline']} -> {cells['current']}) {reason}"
                )
        yield f"<h2>{_text(case['title'])}</h2><p>{_text(case.get('headline', ''))}</p>"
        yield f"<pre>{chr(10).join(map(_text, [*changes[:8], *case.get('story', ())]))}</pre>"
        if command := case.get("command"):
            yield f"<p><code>{_text(command)}</code></p>"
    if len(first) > WITHOUT_SCRIPT:
        yield f"<p>{_text(page['headings'][0])}: {len(first) - WITHOUT_SCRIPT} more</p>"
    yield from (f"<p>{_text(line.text)}</p>" for line in page.get("notes", ())[:WITHOUT_SCRIPT])
    yield "<noscript><p>The other cases, all launches, charts and tables need JavaScript.</p></noscript></main>"
