"""Writes the docs that are made of tables and docstrings of the code: ``python tests/support/reference.py``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_distbench import elastic, instruments, read
from pytest_distbench.commands.cli import _parser
from pytest_distbench.plugin import arguments
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.elastic import Elastic, ElasticPool
from pytest_distbench.plugin.markers import Requirement
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.plugin.scaling import Scaling
from pytest_distbench.plugin.settings import MARKERS, SHORT
from pytest_distbench.plugin.shapes import CollectiveSweep, TimeToAccuracy
from pytest_distbench.plugin.traffic import Communication
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.options import ADVANCED, BASIC, OPTIONS
from pytest_distbench.records.reasons import REASONS, VERDICTS, Reason
from pytest_distbench.report.tables import TABLES
from pytest_distbench.report.texts.glossary import entries
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.elastic.life import ElasticRank
from pytest_distbench.worker.elastic.training import Training
from pytest_distbench.worker.goal import Goal

DOCS = Path(__file__).parents[2] / "docs"

CALLS: dict[str, dict[str, Callable[..., Any]]] = {
    "Fixtures": {
        "distbench.run": Distbench.run,
        "distbench.measure": Distbench.measure,
        "distbench.check": Distbench.check,
        "distbench.judge": Distbench.judge,
        "distbench.replay": Distbench.replay,
        "collective_sweep": CollectiveSweep.__call__,
        "time_to_accuracy": TimeToAccuracy.__call__,
        "scaling": Scaling.__call__,
        "communication.buckets": Communication.buckets,
        "communication.overlap": Communication.overlap,
        "communication.compression": Communication.compression,
        "communication.links": Communication.links,
        "elastic": Elastic.__call__,
        "elastic_pool": ElasticPool.__call__,
    },
    "The rank that a body is given": {
        "rank.timed": RankContext.timed,
        "rank.record": RankContext.record,
        "rank.phase": RankContext.phase,
        "rank.goal": Goal.__init__,
        "goal.steps": Goal.steps,
        "goal.check": Goal.check,
        "rank.point": RankContext.point,
        "rank.wants": RankContext.wants,
        "rank.progress": RankContext.progress,
        "rank.barrier": RankContext.barrier,
        "rank.agree": RankContext.agree,
        "rank.sum_over_ranks": RankContext.sum_over_ranks,
        "rank.max_over_ranks": RankContext.max_over_ranks,
    },
    "The rank of an elastic job": {
        "rank.training": ElasticRank.training,
        "rank.random_streams": ElasticRank.random_streams,
        "training.batches": Training.batches,
        "training.note": Training.note,
        "training.drew": Training.drew,
        "training.end_after_epoch": Training.end_after_epoch,
    },
    "Readers": {name: getattr(read, name) for name in ("stdout", "jsonl", "csv", "mllog", "tensorboard")},
    "In a script": {name: getattr(instruments, name) for name in ("record", "timed", "phase")},
    "Changes of membership, jobs and serving": {name: getattr(elastic, name) for name in elastic.__all__},
}
"""What users call, by the heading it stands under."""

HEAD = """\
This page lists every option, marker, call, table and command. `python tests/support/reference.py` writes it from the
tables and docstrings of the code, and a test compares them. The other pages explain."""

OF_WORDS = """\
Written from the tables of the code. `distbench explain` prints the same: give it a word, a code, or a line that a run
printed."""

OF_OPTIONS = """\
`pytest --help` lists them in two groups, *distbench* and *distbench advanced*. Each is also an ini key,
`distbench_<name>` with underscores, unless it is marked *command line only*."""

OF_INI_KEYS = """\
For a single run give them with pytest's `-o`, such as `-o distbench_numa_binding=node`."""

OF_MARKERS = """\
Each is also `distbench_<name>`, which means the same, such as `@pytest.mark.distbench_gpu(link="nvlink")`. If your
project has its own marker of one of these names, set the ini key `distbench_short_options = false`, and use the long
spelling."""

SHARED = "Several calls take these keywords; the line of each call names its own."

OF_THE_PLUGIN = {"watch", "only_structure"}
"""Attributes of a rank that are not for bodies."""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def words() -> str:
    """The page of the words that a run prints."""
    return "\n".join(_words()) + "\n"


def _words() -> Iterator[str]:
    yield from ["# What the words mean", "", OF_WORDS]
    for kind in dict.fromkeys(entry.kind for entry in entries()):
        of_kind = [entry for entry in entries() if entry.kind == kind]
        has_steps = any(entry.next_step for entry in of_kind)
        yield from ["", f"## {kind.capitalize()}s", ""]
        rows = (
            [f"[`{entry.name}`]({entry.page})", entry.means, *([entry.next_step] if has_steps else [])]
            for entry in of_kind
        )
        yield from _table([kind, "meaning", *(["what to do"] if has_steps else [])], rows)


def _lines() -> Iterator[str]:
    yield from ["# Reference", "", HEAD, "", "## Options of pytest", "", OF_OPTIONS, ""]
    yield from _table(["option", "meaning"], _options(BASIC))
    yield from ["", "### Advanced", ""]
    yield from _table(["option", "meaning"], _options(ADVANCED))
    yield from ["", "### Ini keys without an option", "", OF_INI_KEYS, ""]
    yield from _table(["ini key", "meaning"], _options(""))
    yield from ["", "## Markers", ""]
    yield from _table(["`@pytest.mark.`", "meaning"], ([f"`{name}`", text] for name, text in _split(MARKERS)))
    yield from ["", OF_MARKERS]
    yield from ["", "What [a test needs of its GPUs](gpus.md#what-a-test-needs); and the keywords of `distbench`:", ""]
    yield from _table(
        ["keyword", "meaning"], ([f"`{n.removesuffix('_s')}`", t] for n, t in _section(Requirement, "Attributes"))
    )
    for heading, calls in CALLS.items():
        yield from ["", f"## {heading}"]
        if heading == "Fixtures":
            yield from ["", SHARED, ""]
            yield from _table(["argument", "default", "meaning"], _shared())
        for name, call in calls.items():
            yield from _call(name, call)
        if heading == "Readers":
            yield from ["", "All readers take:", ""]
            yield from _table(["argument", "meaning"], _definitions(read))
        elif heading == "Fixtures":
            yield from ["", "All of them return a `Run`:", ""]
            yield from _table(["", "meaning"], _properties(Run))
        elif heading == "The rank that a body is given":
            yield from ["", "Attributes:", ""]
            rows = (row for row in _section(RankContext, "Attributes") if row[0] not in OF_THE_PLUGIN)
            yield from _table(["`rank.`", "meaning"], rows)
    yield from [
        "",
        "## Kinds of metrics",
        "",
        "The values of `better=`. *reduce* is the default over the ranks, without `reduce=`.",
        "",
    ]
    kinds = METRIC_KINDS.items()
    yield from _table(["`better=`", "meaning", "reduce"], ([f"`{name}`", k.summary, k.reduce] for name, k in kinds))
    yield from ["", "## Verdicts", "", "The most severe first; [verdicts.md](verdicts.md) says when each is given.", ""]
    verdicts = (
        [row.mark.strip() and f"`{row.mark}`", name, row.means, _outcome(row)] for name, row in VERDICTS.items()
    )
    yield from _table(["", "verdict", "meaning", "the test"], verdicts)
    yield from ["", "Each verdict has a reason with a code; `distbench explain CODE` explains it:", ""]
    reasons = ([f"`{code}`", row.verdict, _outcome(row)] for code, row in REASONS.items())
    yield from _table(["reason", "verdict", "the test"], reasons)
    yield from [
        "",
        "## Tables",
        "",
        "`distbench report RUN.json --table NAME`; without a name it lists the tables of the run.",
        "",
    ]
    yield from _table(["table", "shows"], ([f"`{name}`", _text(kind.summary)] for name, kind in TABLES.items()))
    yield from ["", "## Commands", ""]
    yield "Exit codes: 0; 1 if the answer is no (regressed, refused, unfit); 2 for an error; 130 after Ctrl-C."
    yield from _commands("distbench", _parser())


def _options(group: str) -> Iterator[list[str]]:
    for name, option in OPTIONS.items():
        spelt = f"--{name}" if name in SHORT else f"--distbench-{name}"
        value = f"[={option.metavar}]" if option.const else f" {option.metavar}" if option.metavar else ""
        only = "" if option.has_ini_key else " (command line only)"
        also = f"; also `--distbench-{name}`" if name in SHORT else ""
        shown = f"{spelt}{value}" if group else f"distbench_{name.replace('-', '_')}"
        if option.group == group:
            yield [f"`{shown}`", f"{option.help}{only}{also}{option.more and f'. {option.more}'}"]


def _split(declarations: Iterable[str]) -> Iterator[list[str]]:
    return (declaration.split(": ", 1) for declaration in declarations)


def _call(name: str, call: Callable[..., Any]) -> Iterator[str]:
    arguments = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    if name == "rank.goal":
        arguments = arguments[1:]  # the rank itself
        first = _first(RankContext.goal)
    else:
        first = _text(inspect.getdoc(call) or "", until=("Args:", "Raises:", "Returns:"))
    spelt = ", ".join(name for p in arguments for name in _taken(p))
    yield from ["", f"### {name}", "", f"`{name}({spelt})`", "", first]
    defaults = {("**" if p.kind is p.VAR_KEYWORD else "") + p.name: _default(p) for p in arguments if not _shares(p)}
    meanings = dict(_section(call, "Args"))
    rows = [[f"`{p}`", value, meanings.get(p.strip("*"), "")] for p, value in defaults.items()]
    if any(row[2] for row in rows):
        yield ""
        yield from _table(["argument", "default", "meaning"], rows)


def _shared() -> Iterator[list[str]]:
    """The keywords that several fixtures take, as their typed dicts document them."""
    defaults = {field.name: field.default for field in dataclasses.fields(arguments.Called)}
    for documented in filter(typing.is_typeddict, vars(arguments).values()):
        yield from ([f"`{n}`", f"`{defaults[n]!r}`", text] for n, text in _section(documented, "Attributes"))


def _shares(parameter: inspect.Parameter) -> list[str]:
    """The shared keywords that a parameter stands for."""
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    return [*getattr(arguments, found[1]).__annotations__] if found and hasattr(arguments, found[1]) else []


def _taken(parameter: inspect.Parameter) -> list[str]:
    return [f"{name}=" for name in _shares(parameter)] or [_spelt(parameter)]


def _spelt(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    return f"{parameter.name}{'=' if parameter.kind is parameter.KEYWORD_ONLY else ''}"


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"


def _section(documented: object, heading: str) -> Iterator[list[str]]:
    """The rows of a section of a docstring: a name, and what it is."""
    found = re.search(rf"^{heading}:\n((?:[ ].*\n?|\n)+)", inspect.getdoc(documented) or "", re.MULTILINE)
    for entry in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", found[1] if found else "", re.MULTILINE):
        yield [entry[0], _text(entry[1])]


def _definitions(module: object) -> Iterator[list[str]]:
    for names, meaning in re.findall(r"^(``.*``)\n    (.*(?:\n    .*)*)", inspect.getdoc(module) or "", re.MULTILINE):
        yield [_text(names), _text(meaning)]


def _properties(of: type) -> Iterator[list[str]]:
    for name, member in vars(of).items():
        if not name.startswith("_"):
            is_call = not isinstance(member, property)
            yield [f"`{name}{'(metric)' if is_call else ''}`", _first(member)]


def _outcome(row: Reason) -> str:
    if row.verdict == "new":
        return "as `--distbench-no-baseline` says"
    return "fails" if row.fails else f"passes; fails with `--{row.fails_under}`" if row.fails_under else "passes"


def _commands(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for command, inner in action.choices.items():
                if any(isinstance(a, argparse._SubParsersAction) for a in inner._actions):
                    yield from _commands(f"{name} {command}", inner)
                    continue
                yield from ["", f"### {name} {command}", "", f"{_sentence(helps.get(command, ''))}"]
                rows = [[_spelt_option(a), _text(_help(a))] for a in inner._actions if a.dest != "help"]
                if rows:
                    yield ""
                    yield from _table(["argument", "meaning"], rows)


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "distbench"}


def _spelt_option(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else ",".join(map(str, action.choices or [action.dest])))
    return f"`{' '.join(filter(None, [', '.join(action.option_strings), str(value)]))}`"


def _first(documented: object) -> str:
    return _text((inspect.getdoc(documented) or "").split("\n\n")[0])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _text(text: str, until: tuple[str, ...] = ()) -> str:
    """A docstring as Markdown: paragraphs, and points of lists, on a line each, up to the first of the headings."""
    for heading in until:
        text = re.split(rf"^{heading}\n", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r":mod:`([^`]+)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r":\w+:`~?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    text = re.sub(r"\bdocs/(\w+\.md)\b", r"[\1](\1)", text)
    return "\n\n".join(
        "\n".join(" ".join(line.split()) for line in re.split(r"\n(?=\s*- )", paragraph))
        for paragraph in text.strip().split("\n\n")
    )


def _table(headings: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {"reference.md": page, "words.md": words}
"""What is written, by the name of its file."""


if __name__ == "__main__":
    for name, write in PAGES.items():
        (DOCS / name).write_text(write())
