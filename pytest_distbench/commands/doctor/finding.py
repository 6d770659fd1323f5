"""What a check found, and the report that all findings make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report, with advice where not all is well.

    ``note`` is worth knowing; with ``warn`` numbers will be noisier or a feature is missing; with ``fail`` tests cannot
    run.
    """

    level: Level
    subject: str
    found: str
    advice: str = ""


def report(findings: Iterator[Finding]) -> Iterator[str]:
    """The findings as lines, and a last line that counts them."""
    counts: dict[Level, int] = {"ok": 0, "note": 0, "warn": 0, "fail": 0}
    for finding in findings:
        counts[finding.level] += 1
        yield f"{finding.level:<5} {finding.subject:<17} {finding.found}"
        if finding.advice:
            yield f"{'':<23} -> {finding.advice}"
    yield ""
    warnings = f"{counts['warn']} warning{'s' * (counts['warn'] != 1)}"
    if counts["fail"]:
        yield f"{counts['fail']} failed: tests cannot run here as it is; {warnings}"
    elif counts["warn"]:
        yield f"{warnings}: tests run, and their numbers are noisier than they need to be"
    else:
        yield "fit to measure"
