"""What users and developers read has the field's terms: a word that is ours alone explains nothing.

Read are the README, the pages of ``docs/`` with the outputs that they show, and the package: messages, tables, the help
of options, the glossary, docstrings and names; of the tests the names of functions and classes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_distbench.tools.explain import terms

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
    r"t(?:ells?|old) (?:\S+ ){0,4}(?:apart|from)\b",  # to distinguish
    r"(?:a|another|old) tests? that moved|moved files?",  # to another folder
    r"(?:minimum|smallest|is|are) detectable",  # the field's term itself
    r"wall clocks?|own clock|system clock|\*\*clock\.\*\*|reads the clock|pytest's clock|no clock, no file",  # clocks
    r"\[reference|# reference|\*\*reference|reference convergence|a reference for each",  # MLPerf's word
    r"float64 references?",  # the training on one rank that `equivalent` compares a layout with
    r"structure references|reference =|a reference to an object|for each reference",  # Python's; BLEU's; a key
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


@functools.lru_cache(maxsize=1)
def nodes_of(code: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(code)))


def texts(code: str) -> Iterator[tuple[int, str]]:
    """The texts in a module that are more than a word, with their lines, docstrings too; no names in quotes."""
    skipped: set[ast.AST] = set()
    for node in nodes_of(code):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            skipped |= {part for part in node.values if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            parts = [re.sub(r"(``?)[^`]+\1", "``", node.value)]
        else:
            continue
        if " " in (text := "".join(map(str, parts)).strip()):
            yield node.lineno, text


def names(code: str) -> Iterator[tuple[int, str]]:
    """The names that a module gives, with their lines."""
    for node in nodes_of(code):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def words_of(name: str) -> str:
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()


def docstrings(code: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, its classes, functions and attributes, with their lines."""
    for node in nodes_of(code):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, inspect.cleandoc(node.value.value)


HANGING = r"(?:Of|By|Where|That|For|In|So|As|From|With)\b"
"""How no docstring begins: it names the thing first, or begins with a verb."""


NAMES = {
    "HostClock": "it is a clock",
    "Clocks": "the hosts have one each",
    "entries": "of a folder, or of torch's flight recorder",
    "entry": "key of a baseline file: `$.entry`",
    "BaselineEntry": "what stands under that key",
    "reference": "key of a run record: the other side of a case; the float64 reference of a layout",
    "StepReference": "the float64 reference of a layout, step by step",
    "beside": "key of a sample in a run record: text that a script printed with a value",
    "BodyReference": "a reference to a function, as in Python",
    "FlightEntry": "torch's word: an entry of its flight recorder",
    "has_fast_side": "documented argument of MetricKind (docs/dev/extending.md)",
    "clocks": "those of hosts",
    "references": "translations that BLEU compares with",
    "clock": "a function that returns seconds, such as time.monotonic",
    "_clock": "a function that returns seconds, such as time.monotonic",
}
"""Names with such a word in a sense of its own, each with its reason."""

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "pytest_distbench").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_terms_of_the_field(page: Path) -> None:
    assert [(line, words) for line in prose(page.read_text()).splitlines() if (words := senses(line))] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT / "pytest_distbench")))
def test_a_module_has_the_terms_of_the_field(module: Path) -> None:
    code = module.read_text()
    assert [(*text, words) for text in texts(code) if (words := senses(text[1]))] == []
    assert [name for name in names(code) if name[1] not in NAMES and senses(words_of(name[1]))] == []
    assert [
        text for text in docstrings(code) if re.match(HANGING, text[1]) or re.search(r"; (?:empty|None):", text[1])
    ] == []


def test_names_of_tests_have_the_terms_of_the_field() -> None:
    modules = [module.read_text() for module in (ROOT / "tests").rglob("*.py")]
    given = {name for code in modules for name in re.findall(r"^ *(?:def|class) (\w+)", code, re.MULTILINE)}

    assert [name for name in sorted(given - NAMES.keys()) if senses(words_of(name))] == []


def test_the_glossary_has_the_terms_of_the_field() -> None:
    assert [text for term in terms() for text in (term.means, term.next_step) if senses(text)] == []


def test_exceptions_are_few_and_each_is_there() -> None:
    given = {name for module in MODULES for _, name in names(module.read_text())}

    assert NAMES.keys() - given == set()
    assert len(NAMES) + len(MEANT) <= 40


def test_of_private_functions_one_in_four_has_a_docstring() -> None:
    nodes = [node for module in MODULES for node in ast.walk(ast.parse(module.read_text()))]
    private = [node for node in nodes if isinstance(node, ast.FunctionDef) and re.match("_(?!_)", node.name)]

    assert sum(ast.get_docstring(node) is not None for node in private) <= len(private) / 4


def test_what_is_read_of_a_module() -> None:
    code = '"""A clock of ours."""\nA = "clock"\nB = f"its clock {A} and {A or \'a clock\'}"\ndef is_told(clock): ...\n'

    assert list(texts(code)) == [(1, "A clock of ours."), (3, "its clock ... and ..."), (3, "a clock")]
    assert list(docstrings(code)) == [(1, "A clock of ours.")]
    assert {name for _, name in names(code)} == {"A", "B", "is_told", "clock"}
    assert [senses(text) for _, text in texts(code)] == [["clock"]] * 3
    assert senses(words_of("is_told")) == ["told"] == senses(words_of("isTold"))
    assert senses("the system clock") == senses("the GPU's clock") == []
