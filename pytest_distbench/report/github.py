"""GitHub Actions: a table in the job summary, and annotations on the lines of failed tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pytest_distbench.records.kinds import VERDICT_KINDS, VerdictName
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report import pair_text
from pytest_distbench.report.case_text import regression_headline, unaccepted_headline
from pytest_distbench.report.escape import printable
from pytest_distbench.report.tables import change, limit, quantity

MAX_SUMMARY_BYTES = 900 * 1024
"""GitHub drops a step's whole summary above 1024 KiB."""

MAX_ANNOTATIONS = 9
"""GitHub shows ten of a kind per step; the tenth says how many more there are."""

_ORDER = tuple(VERDICT_KINDS)


def runs_here(variables: Mapping[str, str]) -> bool:
    """Whether this is a GitHub Actions step."""
    return variables.get("GITHUB_ACTIONS") == "true"


def append_summary(path: Path, results: Sequence[CaseResult]) -> None:
    """Append a Markdown table to the step's summary file, failures first, cut below GitHub's limit."""
    used = path.stat().st_size if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        file.write(summary(results, max_bytes=MAX_SUMMARY_BYTES - used))


def summary(results: Sequence[CaseResult], *, max_bytes: int) -> str:
    """The Markdown table; rows that do not fit are counted in its last line."""
    rows = sorted(
        ((r, v) for r in results for v in r.verdicts if v.is_judged), key=lambda pair: _ORDER.index(pair[1].kind)
    )
    failed = sum(v.is_failure for _, v in rows)
    device = f"{results[0].environment.device}, {results[0].environment.platform}" if results else "nothing measured"
    lines = [
        f"### distbench: {failed} of {len(rows)} metrics failed",
        "",
        escape(device),
        "",
        "| verdict | test | metric | this run | baseline | change | limit | n |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    size = sum(len(line.encode()) + 1 for line in lines) + 100
    for done, (result, verdict) in enumerate(rows):
        line = _row(result, verdict)
        size += len(line.encode()) + 1
        if size > max_bytes:
            lines += ["", f"{len(rows) - done} more rows left out: see the run record"]
            break
        lines.append(line)
    return "\n".join(lines) + "\n\n"


def workflow_commands(
    results: Sequence[CaseResult], *, also_failing: Collection[VerdictName] = frozenset()
) -> list[str]:
    """Workflow commands: an error per test that failed by its verdicts, a warning per test without a clear one.

    Args:
        results: of the run; those of an update are passed over, expected regressions are warnings.
        also_failing: verdict kinds that fail a test besides those that always do.
    """
    errors, warnings = [], []
    for result in (r for r in results if not r.update):
        kinds = {v.kind for v in result.verdicts if v.is_judged}
        file = result.nodeid.partition("::")[0]
        title = result.nodeid.rpartition("::")[2]
        failing = [v for v in result.verdicts if v.is_judged and (v.is_failure or v.kind in also_failing)]
        if failing and result.xfail_perf and any(v.is_failure for v in failing):
            warnings.append(_command("warning", file, title, f"expected: {result.xfail_perf}"))
        elif failing and not any(v.is_failure for v in failing):
            errors.append(_command("error", file, title, unaccepted_headline(failing)))
        elif failing:
            headline = pair_text.headline(result) if result.reference.kind == "paired" else regression_headline(result)
            errors.append(_command("error", file, title, headline))
        elif unclear := {kind for kind in kinds if VERDICT_KINDS[kind].warns}:
            first = next(v for v in result.verdicts if v.kind in unclear)
            warnings.append(_command("warning", file, title, f"{first.kind}: {first.metric} {first.reason}"))
    return [*_capped(errors, "error"), *_capped(warnings, "warning")]


def escape(text: str) -> str:
    """Text that cannot leave its table cell nor become markup."""
    for character, replacement in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'")):
        text = text.replace(character, replacement)
    return "".join(c if c.isprintable() else " " for c in text)


def _row(result: CaseResult, v: Verdict) -> str:
    name = result.nodeid.rpartition("::")[2]
    cells = (
        v.kind,
        name,
        v.metric,
        quantity(v.current, v.unit),
        quantity(v.baseline, v.unit),
        change(v),
        limit(v),
        str(v.launches),
    )
    return "| " + " | ".join(escape(c) for c in cells) + " |"


def _command(kind: str, file: str, title: str, message: str) -> str:
    return f"::{kind} file={_property(file)},title={_property(title)}::{_data(message)}"


def _capped(commands: list[str], kind: str) -> list[str]:
    if len(commands) <= MAX_ANNOTATIONS + 1:
        return commands
    return [*commands[:MAX_ANNOTATIONS], f"::{kind}::{len(commands) - MAX_ANNOTATIONS} more, see the job summary"]


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
