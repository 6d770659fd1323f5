"""README and docs are true: every path, link, command and option they name exists."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
from support import reference

from pytest_distbench.commands.cli import main
from pytest_distbench.records.options import OPTIONS
from pytest_distbench.records.run import STATISTICS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_distbench"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = "pytest_distbench|suites|tests|benchmarks|docs|\\.github"
EXAMPLES = {
    f"suites/{name}.py" for name in ("test_mine", "test_scaling", "test_step", "test_training", "conftest", "a")
}
"""Files of the reader's own."""
NOT_PRINTED = {"+23.0 % (threshold +15%)", "-s", "killed by SIGKILL"}
"""What docs/triage.md has in code and nobody prints, or with numbers in it."""
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


BUDGETS = {
    "README.md": 1110,  # what it catches, wrong layouts among it; two commands, an unchanged script
    "first-day.md": 1100,
    "scripts.md": 1300,
    "numbers.md": 900,
    "frameworks.md": 800,
    "limitations.md": 502,
    "writing.md": 1600,
    "baselines.md": 1200,
    "against.md": 1219,  # whose tests judge a change, which files these are, and what of its numbers is theirs
    "ci.md": 1665,  # pull requests from forks; the gate that init writes; what a format cannot hold
    "hosts.md": 1700,
    "noise.md": 1000,
    "triage.md": 2465,  # which part of a change, of a slowdown too; a trace for each rank; the line of a regression
    "history.md": 800,
    "elastic.md": 2300,
    "migration.md": 1011,  # repeat, subtests, asyncio
    "collectives.md": 1300,
    "trainings.md": 1700,
    "scaling.md": 1300,
    "layouts.md": 1220,  # the first module that is wrong; networks without float64, averages
    "models.md": 900,
    "forecast.md": 1070,  # with how far off it is, in four places
    "gpus.md": 950,  # AMD
    "files.md": 800,
    "verdicts.md": 2056,  # what decides where A/B cannot; memory by its scatter; the mean; CPU time
    "fingerprints.md": 1366,
    "convergence.md": 1520,
    "index.md": 163,
}
"""Words of a page, with its code."""
GENERATED = {"reference.md", "words.md"}


def words(pages: list[Path]) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def test_a_page_keeps_to_its_words() -> None:
    """A page that may grow is read by nobody: what is added takes the place of something."""
    site = [page for page in PAGES if page.name == "README.md" or page.parent.name == "docs"]

    assert {page.name for page in site} == {*BUDGETS, *GENERATED}
    assert {p.name: words([p]) for p in site if words([p]) > BUDGETS.get(p.name, 8_000)} == {}
    # weights, options, rows of logs, advisory=timings, steps of CI; each argument is named in its own sentence
    assert words([page for page in site if page.name in GENERATED]) <= 9_260
    # what a training leaves behind; where numbers are; frameworks; limitations; wrong modules; float64; plans; shrink
    assert words([page for page in site if page.name not in GENERATED]) <= 34_590


def test_the_sidebar_has_the_groups_and_labels_of_the_readme() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \|$", PAGES[0].read_text().partition("## Documentation")[2], re.MULTILINE)
    readme = {group.capitalize(): set(re.findall(r"\[(.+?)\]\(docs/(.+?)\.md\)", links)) for group, links in rows}
    trees = re.findall(r":caption: (.+)\n\n((?:.+\n)+?)```", (ROOT / "docs" / "index.md").read_text())
    sidebar = {group: set(re.findall(r"^(.+) <(.+)>$", pages, re.MULTILINE)) for group, pages in trees}

    inside = {pair for pair in readme["Change it"] if pair[1] != "dev/architecture"}  # below it
    assert sidebar == {group: pairs - inside for group, pairs in readme.items()}


def test_what_is_written_for_who_changes_the_project_keeps_to_its_words() -> None:
    pages = [page for page in PAGES if page.parent.name == "dev"]

    assert len(pages) <= 8
    assert words(pages) <= 13_550  # runs of new releases by hand; the table of the first verdict; small slowdowns


def code_of(text: str) -> list[str]:
    """What is set as code: blocks line by line, and spans."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    return [*(line for block in blocks for line in block.splitlines()), *spans]


def test_every_path_of_the_repository_exists() -> None:
    """Paths of modules are given from the repository's root, or from the package's: ``run/session.py``."""
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(rf"\b(?<![\w/.])((?:{FOLDERS})/[\w./-]+\.\w+)", text))
        modules = set(re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)`", text))

        assert {name for name in named - EXAMPLES if not (ROOT / name).exists()} == set(), page
        assert {name for name in modules if not (PACKAGE / name).exists()} == set(), page


def test_every_dotted_name_can_be_looked_up() -> None:
    for page in PAGES:
        for name in set(re.findall(r"`(pytest_distbench(?:\.\w+)+)", page.read_text())):
            if (ROOT / f"{name.replace('.', '/')}.py").exists() or (ROOT / name.replace(".", "/")).is_dir():
                continue  # not imported: one of them makes this whole process believe that it has CUDA
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


def test_every_link_leads_to_a_page() -> None:
    for page in PAGES:
        links = re.findall(r"\]\(([^)#]+)", page.read_text())

        assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_option_exists() -> None:
    for page in PAGES:
        named = set(re.findall(r"--distbench-([a-z-]+[a-z])", page.read_text()))

        assert named - set(OPTIONS) == set(), page


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_written_page_says_what_the_tables_of_the_code_say(name: str) -> None:
    assert (reference.DOCS / name).read_text() == reference.PAGES[name](), "run: python tests/support/reference.py"


def test_what_to_ignore_is_what_init_writes() -> None:
    ignored = (PACKAGE / "tools" / "template" / "gitignore.txt").read_text()

    assert f"```text\n# .gitignore\n{ignored}```" in (ROOT / "docs" / "baselines.md").read_text()


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_command_exists_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for page in PAGES:
        for line in code_of(page.read_text()):
            if not (found := re.match(r"(?:\$ )?distbench ((?:(?:baseline|data) )?[a-z]+)\b(.*)", line)):
                continue
            command, rest = found.groups()
            with pytest.raises(SystemExit) as ended:
                main([*shlex.split(command), "--help"])
            told = capsys.readouterr().out
            assert ended.value.code == 0, line
            if command not in ("verdict", "judge", "shrink"):  # what it does not know itself goes to pytest
                assert [option for option in re.findall(r"--[a-z][a-z-]+", rest) if option not in told] == [], line


def printed() -> list[str]:
    """Every text in the code of the package, with ``...`` where something is put into it, and its options."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("...".join(p.value if isinstance(p, ast.Constant) else "" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    options = [f"--distbench-{name} {row.metavar}".rstrip() for name, row in OPTIONS.items()]
    return [*found, *options, *(path.read_text() for path in PACKAGE.rglob("*.toml"))]


def test_no_text_of_the_package_names_a_page_of_the_docs() -> None:
    """They are not there after ``pip install``. What stands before a module's code is for who has the repository."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        aside = [node.value for node in tree.body if isinstance(node, ast.Expr)]
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found += [(path.name, node.lineno) for node in texts if node not in aside and "docs/" in node.value]

    assert found == []
    named = re.compile(rf"docs/|\b(?:{'|'.join(BUDGETS)})")
    assert [path for path in PACKAGE.rglob("template/*") if named.search(path.read_text())] == []


def test_each_statistic_that_a_table_names_is_explained() -> None:
    page = (ROOT / "docs" / "verdicts.md").read_text()

    rows = [f"| {row.shown} | `{name}` | {row.means} |" for name, row in STATISTICS.items()]
    assert [row for row in rows if row not in page] == []


def test_the_words_that_troubleshooting_quotes_are_those_that_are_printed() -> None:
    """Quotes are code in the first column: options, and words of the plugin; ``...`` replaces inserted texts."""
    page = (ROOT / "docs" / "triage.md").read_text().partition("## What a rank")[0]
    quoted = {q for row in re.findall(r"^\| (.*?) \| ", page, re.MULTILINE) for q in re.findall(r"`([^`]+)`", row)}
    words = [part.strip() for quote in quoted - NOT_PRINTED for part in quote.split("...") if len(part.strip()) > 1]
    texts = printed()

    assert len(quoted) > 40
    assert [part for part in words if not any(part in text for text in texts)] == []
