"""``distbench explain``: what a word means that a run has printed, and what to do about it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator

from pytest_distbench.commands.contract import Adder
from pytest_distbench.errors import DistbenchError, show
from pytest_distbench.report.texts.glossary import Entry, entries, explain


def add(add_parser: Adder) -> None:
    """Add the command."""
    parser = add_parser("explain", help="what a verdict, a metric or a failure means, and what to do about it")
    parser.add_argument("words", metavar="WORDS", nargs="*", help="as a run printed them; none: all that are known")
    parser.set_defaults(command=_explain)


def _explain(options: argparse.Namespace) -> Iterator[str]:
    if not options.words:
        yield from _list()
        return
    text = " ".join(options.words)
    found = explain(text)
    if not found:
        names = [entry.name for entry in entries()]
        close = difflib.get_close_matches(text, names, n=3)
        did_you_mean = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
        raise DistbenchError(
            f"nothing is known of {show(text)}{did_you_mean}: distbench explain, without words, lists what is. A "
            "metric that is not there is one that the test records"
        )
    for i, entry in enumerate(found):
        yield from [""] * (i > 0)
        yield f"{entry.name} ({entry.kind})"
        yield f"  {entry.means}"
        if entry.next_step:
            yield f"  next: {entry.next_step}"
        yield f"  docs/{entry.page}"


def _list() -> Iterator[str]:
    known: dict[str, list[Entry]] = {}
    for entry in entries():
        known.setdefault(entry.kind, []).append(entry)
    for kind, of_kind in known.items():
        yield f"{kind}s"
        yield from (f"  {entry.name}" for entry in of_kind)
