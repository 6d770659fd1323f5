"""Writes the page: what must be readable anywhere as HTML, everything else as compressed data that a script draws."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from html import escape as quote
from importlib.resources import files
from typing import Any, BinaryIO

import msgspec

from pytest_distbench.report.page.content import Page, PageCase
from pytest_distbench.report.texts import escape

WITHOUT_SCRIPT = 50
"""Cases that stand first, and notes, which are readable without JavaScript."""

_FILES = files(__package__)


def write_page(page: Page, out: BinaryIO) -> None:
    script, style = ((_FILES / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(page.title)}</title>",
        f"<style>{style}</style>",
        *_readable(page),
        f'<script id="data" type="application/octet-stream">{_packed(page)}</script>',
        f"<script>{script}</script>",
        "</html>",
    ]
    out.write("\n".join([*lines, ""]).encode("utf-8"))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _packed(page: Page) -> str:
    """The page as JSON, compressed: its alphabet cannot end the element it stands in."""
    content = msgspec.json.encode(_safe(msgspec.to_builtins(page)))
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _safe(value: Any) -> Any:
    """The same without characters that hide or reorder what people read."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value


def _text(text: str) -> str:
    return quote(escape(text))


def _readable(page: Page) -> Iterator[str]:
    """What mail programs and browsers without JavaScript show; the script puts its own in the place."""
    first = [case for case in page.cases if case.is_first]
    counts = ", ".join(f"{number} {state}" for state, number in page.counts.items())
    yield f'<main id="page"><h1>{_text(page.title)}</h1>'
    yield f"<p>{_text(counts or 'nothing was measured')}</p>"
    for case in first[:WITHOUT_SCRIPT]:
        yield from _readable_case(case)
    if len(first) > WITHOUT_SCRIPT:
        yield f"<p>{_text(page.headings[0])}: {len(first) - WITHOUT_SCRIPT} more</p>"
    yield from (f"<p>{_text(line.text)}</p>" for line in page.notes[:WITHOUT_SCRIPT])
    yield "<noscript><p>The other cases, all launches, charts and tables need JavaScript.</p></noscript></main>"


def _readable_case(case: PageCase) -> Iterator[str]:
    moved = (row for row in case.rows if row.reason or row.change)
    told = [f"{row.text}: {row.kind} {row.change} ({row.reference} -> {row.current}) {row.reason}" for row in moved]
    yield f"<h2>{_text(case.title)}</h2><p>{_text(case.headline)}</p>"
    yield f"<pre>{chr(10).join(map(_text, [*told[:8], *case.story]))}</pre>"
    if case.command:
        yield f"<p><code>{_text(case.command)}</code></p>"
