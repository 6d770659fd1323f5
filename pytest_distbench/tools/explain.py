"""``distbench explain``: what the words of a run mean: verdicts, reasons, terms, metrics, columns and failures.

Verdicts, reasons, statistics, launchers, tables and the errors of torch, NCCL and CUDA have tables of their own; all
others are in ``words.toml``.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytest_distbench.commands import Subcommand
from pytest_distbench.errors import DistbenchError, show
from pytest_distbench.launch.evidence import SIGNS
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.records.reasons import REASONS, VERDICTS
from pytest_distbench.records.run import STATISTICS
from pytest_distbench.report.tables import TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A word, or the beginning of what is printed.

    Attributes:
        kind: ``line``, ``verdict``, ``reason``, ``word``, ``metric``, ``statistic``, ``column``, ``launcher`` or
            ``failure``.
        page: of the documentation, with its anchor: what it says beyond that.
        pattern: finds it in a line that was printed, in any case.
        also: other names of it.
    """

    kind: str
    name: str
    means: str
    page: str
    next_step: str = ""
    pattern: str
    also: tuple[str, ...] = ()


def _whole(pattern: str) -> str:
    return rf"(?<![\w/]){pattern}(?![\w/])"


@cache
def _glossary() -> dict[str, list[Entry]]:
    rows = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    found = {
        kind: [
            Entry(
                kind=kind,
                name=row["names"][0],
                also=tuple(row["names"][1:]),
                means=row["means"],
                next_step=row["next"],
                page=row["page"],
                pattern=row.get("pattern") or _whole(rf"(?:{'|'.join(map(re.escape, row['names']))})s?"),
            )
            for row in rows[kind]
        ]
        for kind in ("line", "word", "failure")
    }
    found["metric"] = [
        Entry(
            kind="metric",
            name=name,
            means=means,
            page=page,
            pattern=_whole(r"[\w/.<>]+".join(map(re.escape, re.split(r"<\w+>", name)))),
        )
        for name, means, page in rows["metric"]
    ]
    return found


def _called(kind: str, name: str, means: str, page: str, *, also: tuple[str, ...] = ()) -> Entry:
    """What is found by its name, and not in a line."""
    means = f"{means[:1].upper()}{means[1:].rstrip('.')}."
    return Entry(kind=kind, name=name, means=means, page=page, pattern="(?!)", also=also)


def _columns(known: Iterable[Entry]) -> Iterator[Entry]:
    """The heads of all tables that are no words, by what each table shows."""
    names = {name for entry in known for name in (entry.name, *entry.also)}
    shows: dict[str, list[str]] = {}
    for name, table in TABLES.items():
        for column in table.columns:
            if isinstance(column.heading, str) and column.heading and column.heading not in names:
                shows.setdefault(column.heading, []).append(f"{name} ({table.summary.rstrip('.')})")
    for heading, tables in shows.items():
        yield _called("column", heading, f"a column of the tables {', '.join(tables)}", "reference.md")


def entries() -> list[Entry]:
    glossary = _glossary()
    verdicts = [
        Entry(
            kind="verdict",
            name=name,
            means=row.means,
            next_step=row.next_step,
            page="verdicts.md#verdicts",
            also=(row.mark,),
            pattern="|".join(filter(None, (_whole(re.escape(name)), row.printed))),
        )
        for name, row in VERDICTS.items()
    ]
    reasons = [
        Entry(
            kind="reason",
            name=code,
            means=f"{row.means} Verdict: {row.verdict}.",
            next_step=row.next_step,
            page="verdicts.md#verdicts",
            pattern=row.printed or re.escape(code),
        )
        for code, row in REASONS.items()
    ]
    signs = [
        Entry(
            kind="failure",
            name=sign.meaning,
            means=f"{sign.meaning[:1].upper()}{sign.meaning[1:]}. Torch, NCCL or CUDA reported this to a rank.",
            next_step=sign.advice,
            page="triage.md#under-nccl",
            pattern=f"{re.escape(sign.meaning)}|{sign.text}",
        )
        for sign in SIGNS
        if sign.meaning
    ]
    page = "verdicts.md#the-rule-for-noisy-numbers"
    statistics = [_called("statistic", name, row.means, page, also=(row.shown,)) for name, row in STATISTICS.items()]
    launchers = [
        _called("launcher", name, row.help, "hosts.md", also=tuple(filter(None, [row.starts])))
        for name, row in LAUNCHERS.items()
    ]
    words, metrics, failures = glossary["word"], glossary["metric"], glossary["failure"]
    known = [*glossary["line"], *verdicts, *reasons, *words, *metrics, *failures, *signs, *statistics, *launchers]
    return [*known, *_columns(known)]


_ORDER = ("line", "reason", "failure", "verdict", "metric")  # of what a line is explained by: the most particular first


def explain(text: str) -> list[Entry]:
    """What is known of a name, of several names, or of a line that a run printed: of that its first words first."""
    known = entries()
    for names in ([text.strip()], text.split()):
        called = [
            [e for e in known if name in (e.name, *e.also)]
            or [e for e in known if name.casefold() in map(str.casefold, (e.name, *e.also))]
            for name in names
        ]
        if all(called):
            return [entry for found in called for entry in found]
    searched = [(re.search(entry.pattern, text, re.IGNORECASE | re.MULTILINE), entry) for entry in known]
    places = [(match.start(), entry) for match, entry in searched if match]
    found = [entry for _, entry in sorted(places, key=lambda place: place[0])]
    particular = sorted((e for e in found if e.kind in _ORDER), key=lambda e: _ORDER.index(e.kind))
    return particular or found


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", metavar="WORDS", nargs="*", help="a name, or a line that a run printed; none: list all names"
    )


def _explain(options: argparse.Namespace) -> Iterator[str]:
    known = entries()
    if not options.words:
        for kind in dict.fromkeys(entry.kind for entry in known):
            yield f"{kind}s"
            yield from (f"  {entry.name}" for entry in known if entry.kind == kind)
        return
    text = " ".join(options.words)
    found = explain(text)
    if not found:
        close = difflib.get_close_matches(text, [entry.name for entry in known], n=3)
        did_you_mean = f"; did you mean {', '.join(map(repr, close))}?" if close else "."
        raise DistbenchError(
            f"{show(text)} is unknown{did_you_mean} 'distbench explain' without words lists all names; a metric "
            "that is not listed is recorded by the test"
        )
    for i, entry in enumerate(found):
        yield from [""] * (i > 0)
        yield f"{entry.name} ({entry.kind})"
        yield f"  {entry.means}"
        if entry.next_step:
            yield f"  next: {entry.next_step}"
        yield f"  more: {entry.page.replace('.md', '.html')} of the documentation"


EXPLAIN = Subcommand(
    "what a verdict, a reason, a word, a metric, a column or a failure means, and what to do", _add_explain, _explain
)
