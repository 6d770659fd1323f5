"""``distbench explain``: the meaning of a run's words: verdicts, reasons, terms, metrics, columns and failures.

Verdicts, reasons, statistics, launchers, tables and the errors of torch, NCCL and CUDA have tables of their own; all
other words are in ``words.toml``.
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
class Term:
    """A word, or the beginning of a printed line, with its meaning.

    Attributes:
        kind: ``line``, ``verdict``, ``reason``, ``word``, ``metric``, ``statistic``, ``column``, ``launcher`` or
            ``failure``.
        page: page of the documentation, with an anchor, that says more.
        pattern: regular expression that finds the word in a printed line, in upper or lower case.
        also: other names of the word.
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
def _glossary() -> dict[str, list[Term]]:
    rows = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    found = {
        kind: [
            Term(
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
        Term(
            kind="metric",
            name=name,
            means=means,
            page=page,
            pattern=_whole(r"[\w/.<>]+".join(map(re.escape, re.split(r"<\w+>", name)))),
        )
        for name, means, page in rows["metric"]
    ]
    return found


def _called(kind: str, name: str, means: str, page: str, *, also: tuple[str, ...] = ()) -> Term:
    means = f"{means[:1].upper()}{means[1:].rstrip('.')}."
    return Term(kind=kind, name=name, means=means, page=page, pattern="(?!)", also=also)


def _columns(known: Iterable[Term]) -> Iterator[Term]:
    """Yield a term for each column heading that no known term explains; it names the tables with that column."""
    names = {name for term in known for name in (term.name, *term.also)}
    shows: dict[str, list[str]] = {}
    for name, table in TABLES.items():
        for column in table.columns:
            if isinstance(column.heading, str) and column.heading and column.heading not in names:
                shows.setdefault(column.heading, []).append(f"{name} ({table.summary.rstrip('.')})")
    for heading, tables in shows.items():
        yield _called("column", heading, f"a column of the tables {', '.join(tables)}", "reference.md")


def terms() -> list[Term]:
    glossary = _glossary()
    verdicts = [
        Term(
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
        Term(
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
        Term(
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


def explain(text: str) -> list[Term]:
    """Explanations of a name, of several names, or of a printed line, in the order of the line's words."""
    known = terms()
    for names in ([text.strip()], text.split()):
        called = [
            [e for e in known if name in (e.name, *e.also)]
            or [e for e in known if name.casefold() in map(str.casefold, (e.name, *e.also))]
            for name in names
        ]
        if all(called):
            return [term for found in called for term in found]
    searched = [(re.search(term.pattern, text, re.IGNORECASE | re.MULTILINE), term) for term in known]
    places = [(match.start(), term) for match, term in searched if match]
    found = [term for _, term in sorted(places, key=lambda place: place[0])]
    particular = sorted((e for e in found if e.kind in _ORDER), key=lambda e: _ORDER.index(e.kind))
    return particular or found


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", metavar="WORDS", nargs="*", help="a name, or a line that a run printed; none: list all names"
    )


def _explain(options: argparse.Namespace) -> Iterator[str]:
    known = terms()
    if not options.words:
        for kind in dict.fromkeys(term.kind for term in known):
            yield f"{kind}s"
            yield from (f"  {term.name}" for term in known if term.kind == kind)
        return
    text = " ".join(options.words)
    found = explain(text)
    if not found:
        close = difflib.get_close_matches(text, [term.name for term in known], n=3)
        did_you_mean = f"; did you mean {', '.join(map(repr, close))}?" if close else "."
        raise DistbenchError(
            f"{show(text)} is unknown{did_you_mean} 'distbench explain' without words lists all names; a metric "
            "that is not listed is recorded by the test"
        )
    for i, term in enumerate(found):
        yield from [""] * (i > 0)
        yield f"{term.name} ({term.kind})"
        yield f"  {term.means}"
        if term.next_step:
            yield f"  next: {term.next_step}"
        yield f"  more: {term.page.replace('.md', '.html')} of the documentation"


EXPLAIN = Subcommand(
    "what a verdict, a reason, a word, a metric, a column or a failure means, and what to do", _add_explain, _explain
)
