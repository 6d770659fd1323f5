"""What users read has the field's terms: a word that is ours alone explains nothing.

Read are the README, the pages of ``docs/`` with the outputs that they show, and the texts of the package: messages,
tables, the help of options and the glossary, but for docstrings, which ``docs/reference.md`` has where they are public.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_distbench.tools.explain import entries

ROOT = Path(__file__).parents[1]

REPLACED = {
    r"in turns": "interleaved A/B; alternating with",
    r"doubt\w*": "suspicious; needs confirmation",
    r"settl(?:e|es|ed|ing)": "confirm; decide",
    r"told|tells?": "reported; says",
    r"moved": "changed",
    r"could (?:have )?seen?|would (?:not )?have (?:been )?(?:seen|found)|detectable": "MDE, minimum detectable effect",
    r"unseen|too noisy to (?:tell|show)": "low power; low sensitivity",
    r"(?:with|be)(?:in|yond) (?:its|their|the) limits?|\(limit [+-]": "threshold",
    r"fast side|fastest iterations": "lower quantile",
    r"against itself|from itself": "A/A noise",
    r"(?:that|which|what) recorded (?:its|their|the|a) baselines?": "baseline commit",
    r"clocks?": "timing",
    r"this tree": "candidate",
    r"references?": "baseline commit, or the name of the revision",
    r"depart(?:s|ed|ing)": "diverges",
    r"drift(?:s|ed|ing)?": "environment shift; numerics changed",
    r"anew": "again; re-record",
    r"long forms?|first pictures?": "slow test",
    r"plant(?:s|ed|ing)?": "injected",
    r"stand-ins?|made-up": "fake; mock; simulated",
    r"entry|entries|(?:another|baselines?) store|store of baselines": "baseline file; baseline directory",
    r"hardware class(?:es)?|class(?:es)? of machines?": "platform",
    r"gravest": "most severe",
    r"beside": "with; next to; compared to",
    r"witness(?:es)?": "secondary signal",
    r"heed(?:s|ed)?": "follow; obey",
    r"some per cent": "a few percent",
    r"page of (?:a|the|this) run": "HTML report",
    r"museum": "catalogue of silent bugs",
}
"""A word that was ours, and what stands in its place."""

MEANT = [
    r"(?:--distbench-)?launcher[ =]stand-in\S*|\$\.entry\.|`entry`|entry points?",  # names of an interface
    r"\]\([^)]*\)|[\w./-]*/[\w./-]+|\w+\.(?:py|md)\b|--[\w=-]+",  # names of options and files
    r"t(?:ells?|old) (?:\S+ ){0,4}(?:apart|from)\b",
    r"(?:a|another|old) tests? that moved|moved files?",
    r"(?:minimum|smallest|is|are) detectable",
    r"wall clocks?|own clock|system clock|\*\*clock\.\*\*|reads the clock|pytest's clock|no clock, no file",
    r"\[reference|# reference|\*\*reference|reference convergence|a reference for each",  # MLPerf's word
    r"structure references|reference =|a reference to an object|for each reference",
    r"^(?:museum|:caption: reference)$|<reference>$",  # of the table of contents
]
"""The same words in a sense of their own: a wall clock, the reference."""

OF_HARDWARE = r"GPU|\bSM\b|nvidia|power limit|\bhosts?\b"
"""A clock in a text with one of these is that of a GPU or of a host."""


def senses(text: str) -> list[str]:
    """The replaced words that stand in a text in their wrong sense."""
    left = re.sub("|".join(MEANT), " ", " ".join(text.split()), flags=re.IGNORECASE)
    if re.search(OF_HARDWARE, text):
        left = re.sub(r"\bclocks?\b", "", left)
    return [found[0] for found in re.finditer(rf"\b(?:{'|'.join(REPLACED)})(?!\w)", left, re.IGNORECASE)]


def prose(page: str) -> str:
    """A page without its code, but with the comments of it, and with the outputs that it shows."""
    blocks = re.compile(r"```(?!text|console)\w+\n(.*?)```", re.DOTALL)
    left = blocks.sub(lambda block: "\n".join(re.findall("#.*", block[1])), page)
    return re.sub(r"(?<!`)(``?)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", "``", left, flags=re.DOTALL)


def texts(code: str) -> Iterator[tuple[int, str]]:
    """The texts in a module that are more than a word, with their lines: no docstrings, and no names in quotes."""
    nodes = list(ast.walk(ast.parse(code)))
    skipped = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            skipped |= {part for part in node.values if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            parts = [node.value]
        else:
            continue
        if " " in (text := "".join(map(str, parts)).strip()):
            yield node.lineno, text


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "pytest_distbench").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_terms_of_the_field(page: Path) -> None:
    assert [(line, words) for line in prose(page.read_text()).splitlines() if (words := senses(line))] == []


def test_the_texts_of_the_package_have_the_terms_of_the_field() -> None:
    found = [(module.name, *text) for module in MODULES for text in texts(module.read_text()) if senses(text[1])]
    explained = [text for entry in entries() for text in (entry.means, entry.next_step) if senses(text)]

    assert (found, explained) == ([], [])


def test_what_is_read_of_a_module() -> None:
    code = '"""A clock of ours."""\nA = "clock"\nB = f"its clock {A} and {A or \'a clock\'}"'

    assert list(texts(code)) == [(3, "its clock ... and ..."), (3, "a clock")]
    assert [senses(text) for _, text in texts(code)] == [["clock"], ["clock"]]
    assert senses("the system clock") == senses("the GPU's clock") == []
