"""Writes the docs that are made of tables and docstrings of the code: ``python tests/support/reference.py``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pytest_distbench import elastic, instruments, read
from pytest_distbench.commands.cli import _parser
from pytest_distbench.elastic.fixtures import Elastic, ElasticPool
from pytest_distbench.elastic.worker.training import ElasticRank, Training
from pytest_distbench.forecast.fixtures import ForecastCall
from pytest_distbench.layouts.fixtures import Equivalent
from pytest_distbench.plugin import arguments
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.markers import Requirement
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.plugin.settings import MARKERS, SHORT
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.options import ADVANCED, BASIC, OPTIONS
from pytest_distbench.records.reasons import ACCEPT, QUIETER, REASONS, RECORD, VERDICTS, Reason
from pytest_distbench.report.tables import TABLES
from pytest_distbench.tools.explain import terms
from pytest_distbench.worker.context import Goal, RankContext
from pytest_distbench.workloads.fixtures import CollectiveSweep, Communication
from pytest_distbench.workloads.scaling import Scaling, TimeToAccuracy

DOCS = Path(__file__).parents[2] / "docs"


def _methods(of: type, called: str, *names: str) -> dict[str, Callable[..., Any]]:
    return {f"{called}.{name}": getattr(of, name) for name in names}


CALLS: dict[str, dict[str, Callable[..., Any]]] = {
    "Fixtures": {
        **_methods(Distbench, "distbench", "run", "measure", "check", "judge"),
        "collective_sweep": CollectiveSweep.__call__,
        "time_to_accuracy": TimeToAccuracy.__call__,
        "scaling": Scaling.__call__,
        **_methods(Communication, "communication", "buckets", "overlap", "compression", "links", "replay"),
        "equivalent": Equivalent.__call__,
        "equivalent.model": Equivalent.model,
        "forecast": ForecastCall.__call__,
        "elastic": Elastic.__call__,
        "elastic_pool": ElasticPool.__call__,
    },
    "The rank that a body is given": {
        **_methods(RankContext, "rank", "timed", "record", "phase"),
        "rank.goal": Goal.__init__,
        **_methods(Goal, "goal", "steps", "check"),
        **_methods(RankContext, "rank", "point", "wants", "progress", "barrier"),
        **_methods(RankContext, "rank", "agree", "sum_over_ranks", "max_over_ranks"),
    },
    "The rank of an elastic job": {
        **_methods(ElasticRank, "rank", "training", "random_streams"),
        **_methods(Training, "training", "batches", "note", "drew", "end_after_epoch"),
    },
    "Readers": {name: getattr(read, name) for name in ("stdout", "jsonl", "json", "csv", "mllog", "tensorboard")},
    "In a script: pytest_distbench.instruments": {n: getattr(instruments, n) for n in ("record", "timed", "phase")},
    "Plans, jobs and serving: pytest_distbench.elastic": {name: getattr(elastic, name) for name in elastic.__all__},
}
"""What users call, by the heading it stands under."""

PAGES_OF = {
    "distbench.run": "writing.md",
    "collective_sweep": "collectives.md",
    "time_to_accuracy": "convergence.md",
    "scaling": "scaling.md",
    "communication.buckets": "collectives.md#communication-patterns",
    "equivalent": "layouts.md",
    "forecast": "forecast.md",
    "elastic": "elastic.md",
    "rank.phase": "scaling.md#where-a-step-goes",
    "stdout": "scripts.md",
}
"""Pages that explain a call."""

HEAD = "A name that ends in `=` is required, and given by keyword. What a run prints: [verdicts and words](words.md)."

OF_WORDS = """\
`distbench explain` prints the same for a word, a code, or a line of a run. After the arrow: what to do."""

OF_OPTIONS = """\
Each is also an ini key, `distbench_<name>` with underscores, unless it is marked *command line only*.
`--world-size` and `--gpu` are also `--distbench-world-size` and `--distbench-gpu`."""

OF_INI_KEYS = "For a single run: `pytest -o distbench_numa_binding=node`."

OF_MARKERS = """\
Each is also `distbench_<name>`: with `distbench_short_options = false` only that. [What a test
needs](gpus.md#what-a-test-needs) has the keywords of `gpu`. Those of
`distbench`:"""

OF_KINDS = """\
The values of `better=`, with the default of `reduce=`; `all`: the ranks must agree."""

OF_TABLES = "`distbench report RUN.json --table NAME`; without a name it lists the tables of the run."

OF_COMMANDS = "Exit codes: 0; 1: the answer is no (regressed, refused, unfit); 2: an error; 130: Ctrl-C."

OF_REASONS = f"""\
Each number gets a verdict, and the verdict a reason with a code.

- Accept: {ACCEPT}
- Record again: {RECORD}
- Less noise: {QUIETER}"""

ONCE = {f"; {ACCEPT}": "; or accept", RECORD: "record again", QUIETER: "less noise", "nothing to do": ""}
"""Steps of several reasons, and what stands for them."""

SAID_ELSEWHERE = {
    *("environment shift", "numerics changed", "low power", "strict", "advisory"),  # by a verdict or a code
    *("faster", "artifact", ".gitignore", "torchrun"),  # by headings of pages, and printed by no run
}
"""Words that are not on the page."""

OF_FAILURES = """\
What [a launch that fails](triage.md#when-launches-fail) reports. `distbench explain` knows lines
of torch, NCCL and CUDA, too."""

OF_THE_PLUGIN = {"watch", "only_structure", "delay"}
"""Attributes of a rank that are not for bodies."""

SAYS_LITTLE = 3
"""Words up to which an explanation is left out; such arguments are listed by name only."""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def words() -> str:
    """The page of the words that a run prints."""
    return "\n".join(_words()) + "\n"


def _words() -> Iterator[str]:
    yield from [
        "# Verdicts, reason codes, metrics and words",
        "",
        OF_WORDS,
        "",
        "## Verdicts",
        "",
        _with_code(OF_REASONS),
    ]
    for name, verdict in VERDICTS.items():
        mark = f"`{verdict.mark}` " if verdict.mark.strip() else ""
        of_it = {code: row for code, row in REASONS.items() if row.verdict == name}
        means = f"{verdict.means} " if len(of_it) > 1 else ""
        yield from ["", f"### {name}", "", f"{mark}{means}The test {_outcome(verdict)}.", ""]
        for code, row in of_it.items():
            other = f" The test {_outcome(row)}." if _outcome(row) != _outcome(verdict) else ""
            yield _point(code, f"{row.means}{other}", _step(row.next_step))
    for kind in ("word", "metric"):
        shown = [term for term in terms() if term.kind == kind and term.name not in SAID_ELSEWHERE]
        yield from ["", f"## {kind.capitalize()}s", "", *(_point(e.name, e.means, "", e.page) for e in shown)]
    yield from ["", "## Failures", "", OF_FAILURES]


def _step(text: str) -> str:
    for step, short in ONCE.items():
        text = text.replace(step, short)
    return text.removeprefix("; ")


def _point(name: str, means: str, next_step: str, page: str = "") -> str:
    shown = f"[`{name}`]({page})" if page else f"`{name}`"
    return f"- {shown}: {_with_code(f'{means} → {next_step}' if next_step else means)}"


def _lines() -> Iterator[str]:
    yield from ["# Reference: options, markers, fixtures, commands", "", HEAD, "", "## Options of pytest", ""]
    yield from [OF_OPTIONS, "", *_points(_options(BASIC)), "", "### Advanced options", "", *_points(_options(ADVANCED))]
    yield from ["", "### Ini keys without an option", "", OF_INI_KEYS, "", *_points(_options(""))]
    yield from [
        "",
        "## Markers",
        "",
        *_points(f"{name}{text}".split(": ", 1) for name, text in MARKERS.items()),
        "",
        OF_MARKERS,
    ]
    keywords = [*_section(Requirement, "Attributes")]
    yield from ["", *_points(keywords)]
    seen = set(keywords)
    for heading, calls in CALLS.items():
        yield from ["", f"## {heading}"]
        for name, call in calls.items():
            yield from _call(name, call, seen)
        if heading == "Readers":
            yield from ["", "### Arguments of all readers", "", *_points(_definitions(read))]
        elif heading == "Fixtures":
            yield from ["", "### Arguments of several fixtures", "", *_shared(calls)]
            yield from ["### The run that they return", "", *_points(_properties(Run))]
        elif heading == "The rank that a body is given":
            rows = (row for row in _section(RankContext, "Attributes") if row[0] not in OF_THE_PLUGIN)
            yield from ["", "### Attributes of a rank", "", *_points(rows)]
    yield from ["", "## Kinds of metrics", "", OF_KINDS, ""]
    yield from _points([name, f"{k.summary} ({k.reduce})"] for name, k in METRIC_KINDS.items())
    yield from ["", "## Tables", "", OF_TABLES, "", *_points([n, _text(kind.summary)] for n, kind in TABLES.items())]
    yield from ["", "## Commands", "", OF_COMMANDS]
    commands = dict(_commands("distbench", _parser()))
    takers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, (_, rows) in commands.items():
        for row in rows:
            takers[row].append(name.removeprefix("distbench ").removeprefix("baseline "))
    shared = [row for row, names in takers.items() if len(names) > 2]  # they stand once
    for name, (summary, rows) in commands.items():
        yield from ["", f"### {name}", "", _sentence(summary), ""]
        yield from _points(row for row in rows if row not in shared)
    yield from ["", "### Arguments of several commands"]
    for names, of_these in groupby(shared, key=takers.__getitem__):
        yield from ["", f"Of {', '.join(names)}:", "", *_points(of_these)]


def _points(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    return (f"- `{name}`{meaning and f': {_with_code(meaning)}'}" for name, meaning in rows)


def _with_code(text: str) -> str:
    """Options are set as code, where they are not yet."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"(?<![\w-])--[a-z][\w:=-]*", r"`\g<0>`", p) for p in parts)


def _options(group: str) -> Iterator[list[str]]:
    for name, option in OPTIONS.items():
        spelt = f"--{name}" if name in SHORT else f"--distbench-{name}"
        value = f"[={option.metavar}]" if option.const else f" {option.metavar}" if option.metavar else ""
        only = "" if option.has_ini_key else " (command line only)"
        shown = f"{spelt}{value}" if group else f"distbench_{name.replace('-', '_')}"
        if option.group == group:
            yield [shown, f"{option.help}{only}{option.more and f'. {option.more}'}"]


def _call(name: str, call: Callable[..., Any], seen: set[tuple[str, str]]) -> Iterator[str]:
    """A call with its first paragraph and its arguments: in one line those that stood before or need no words."""
    public = RankContext.goal if name == "rank.goal" else call
    taken = {p.name: _spelt(p) for p in inspect.signature(public).parameters.values() if not _shares(public, p)}
    meanings = [(n, meaning) for n, meaning in _section(call, "Args") if n in taken]
    said = {n: meaning for n, meaning in meanings if (n, meaning) not in seen and len(meaning.split()) > SAYS_LITTLE}
    seen |= set(meanings)
    more = f" [More]({PAGES_OF[name]})." if name in PAGES_OF else ""
    yield from ["", f"### {name}", "", f"{_first(public)}{more}", "", *_points([taken[n], said[n]] for n in said)]
    if rest := [f"`{spelt}`" for n, spelt in taken.items() if n not in {*said, "self", "reading"}]:
        yield f"- {', '.join(rest)}"


def _shared(calls: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """The keywords that several fixtures take, as their typed dicts document them, by the calls that take them."""
    defaults = {field.name: field.default for field in dataclasses.fields(arguments.Called)}
    takers = {
        name: {key for p in inspect.signature(call).parameters.values() for key in _shares(call, p)}
        for name, call in calls.items()
    }
    for documented in filter(typing.is_typeddict, vars(arguments).values()):
        if rows := [*_section(documented, "Attributes")]:
            by = [name for name in calls if rows[0][0] in takers[name]]
            others = [name for name in calls if name not in by]
            named = f"Of all but {', '.join(others)}" if len(others) < len(by) else f"Of {', '.join(by)}"
            yield from [f"{named}:", "", *_points([f"{n}={defaults[n]!r}", t] for n, t in rows), ""]


def _shares(call: Callable[..., Any], parameter: inspect.Parameter) -> list[str]:
    """The shared keywords that a parameter stands for."""
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    return [*getattr(sys.modules[call.__module__], found[1]).__annotations__] if found else []


def _spelt(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    if parameter.default is not parameter.empty:
        return f"{parameter.name}={parameter.default!r}"
    return f"{parameter.name}{'=' if parameter.kind is parameter.KEYWORD_ONLY else ''}"


def _section(documented: object, heading: str) -> Iterator[tuple[str, str]]:
    """The rows of a section of a docstring: a name, and what it is."""
    found = re.search(rf"^{heading}:\n((?:[ ].*\n?|\n)+)", inspect.getdoc(documented) or "", re.MULTILINE)
    for entry in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", found[1] if found else "", re.MULTILINE):
        yield entry[0], _text(entry[1])


def _definitions(module: object) -> Iterator[list[str]]:
    for names, meaning in re.findall(r"^``(.*)``\n    (.*(?:\n    .*)*)", inspect.getdoc(module) or "", re.MULTILINE):
        yield [_text(names), _text(meaning)]


def _properties(of: type) -> Iterator[list[str]]:
    for name, member in vars(of).items():
        if not name.startswith("_"):
            is_call = not isinstance(member, property)
            yield [f"{name}{'(metric)' if is_call else ''}", _first(member)]


def _outcome(row: Reason) -> str:
    if row.verdict == "new":
        return "passes, or as `--distbench-no-baseline` says"
    if row.verdict == "not evaluated":
        return "is decided by its other numbers"
    return "fails" if row.fails else f"passes; `--{row.fails_under}` fails it" if row.fails_under else "passes"


def _commands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, tuple[str, list[tuple[str, str]]]]]:
    """Each command with its summary and its arguments."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for command, inner in action.choices.items():
                if any(isinstance(a, argparse._SubParsersAction) for a in inner._actions):
                    yield from _commands(f"{name} {command}", inner)
                    continue
                rows = [(_spelt_option(a), _text(_help(a))) for a in inner._actions if a.dest != "help"]
                yield f"{name} {command}", (helps.get(command, ""), rows)


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "distbench"}


def _spelt_option(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else ",".join(map(str, action.choices or [action.dest])))
    return " ".join(filter(None, [", ".join(action.option_strings), str(value)]))


def _first(documented: object) -> str:
    return _text((inspect.getdoc(documented) or "").split("\n\n")[0])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _text(text: str) -> str:
    """A docstring as Markdown, on a line."""
    text = re.sub(r":mod:`([^`]+)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r":\w+:`~?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    return " ".join(text.replace("one of `METRIC_KINDS`", "one of the [kinds](#kinds-of-metrics)").split())


PAGES: dict[str, Callable[[], str]] = {"reference.md": page, "words.md": words}
"""What is written, by the name of its file."""


if __name__ == "__main__":
    for name, write in PAGES.items():
        (DOCS / name).write_text(write())
