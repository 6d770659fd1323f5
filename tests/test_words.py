"""What users read has the field's terms: a word that is ours alone explains nothing.

Read are the README and the pages of ``docs/`` but for what they quote.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    r"\]\([^)]*\)|[\w./-]*/[\w./-]+|\w+\.(?:py|md)\b|--[\w=-]+",  # names of options and files
    r"tells? (?:\S+ ){1,4}(?:apart|from)\b",  # told apart
    r"(?:a|another|old) tests? that moved|moved files?",
    r"(?:minimum|smallest) detectable",
    r"wall clocks?|own clock|\*\*clock\.\*\*|reads the clock|pytest's clock|no clock, no file",
    r"\[reference|# reference|\*\*reference|reference convergence|a reference for each",  # MLPerf's and ReFrame's word
    r"structure references",
    r"entry points?",
    r"^(?:museum|reference)$",  # of the table of contents
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
    """A page without what it quotes, but with the comments of its code."""
    blocks = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
    return re.sub(r"`[^`]+`", "``", blocks.sub(lambda block: "\n".join(re.findall("#.*", block[1])), page))


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE_OF_CODE = {"reference", "words"}
"""Pages that change with the texts of the code."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in MADE_OF_CODE], ids=lambda page: page.stem)
def test_a_page_has_the_terms_of_the_field(page: Path) -> None:
    assert [(line, words) for line in prose(page.read_text()).splitlines() if (words := senses(line))] == []
