"""Commands about a run: what it measured, how it compares with another one, and what it says of a commit.

``distbench compare`` and ``report`` read run records, without baselines; ``verdict`` runs pytest, and has the exit code
that ``git bisect run`` wants.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from pytest_distbench.commands import NegativeError, Subcommand, run_pytest, take_pytest_options
from pytest_distbench.errors import ConfigurationError, DistbenchError, TableError
from pytest_distbench.judging.case import compare_runs
from pytest_distbench.judging.entry import FEWEST_LAUNCHES, impossible_value
from pytest_distbench.judging.words import metric_text
from pytest_distbench.records.run import RunRecord
from pytest_distbench.records.wanted import DEFAULT_TOLERANCE, FRACTION
from pytest_distbench.report import layout
from pytest_distbench.report.formats import FORMATS, write_as
from pytest_distbench.report.page import PAGE_FILES
from pytest_distbench.report.page.content import UNKNOWN_COMMAND, other_of, page_of, write_page
from pytest_distbench.report.tables import TABLES, table_of, tables_of
from pytest_distbench.report.tables.table import DataTable
from pytest_distbench.report.terminal import ending_lines, sentence, summary_lines
from pytest_distbench.report.verdicts import verdict_rows
from pytest_distbench.store.files import PAGE_SIGN, check_target, read_prices, read_run_record, replace_file
from pytest_distbench.units import about, counted, format_moment


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="A.json", type=Path, help="the baseline, written by pytest --distbench-json")
    parser.add_argument("new", metavar="B.json", type=Path, help="the run to judge")
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything failed, or nothing was judged")
    parser.add_argument(
        "--tolerance",
        metavar="X",
        default=DEFAULT_TOLERANCE,
        help=f"accepted change towards worse (default: {DEFAULT_TOLERANCE})",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN.json", type=Path, help="written by pytest --distbench-json")
    parser.add_argument(
        "--table", metavar="NAME", default="", help="name of a table; without it those of the run are listed"
    )
    named = [(row.is_whole, f"{name} (of {row.needs})" if row.needs else name) for name, row in FORMATS.items()]
    of_table, of_run = (", ".join(name for is_whole, name in named if is_whole is whole) for whole in (False, True))
    parser.add_argument(
        "--format",
        metavar="NAME",
        choices=[*FORMATS],
        default="text",
        help=f"of the table: {of_table} (default: text); of the whole run: {of_run}",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE.toml",
        type=Path,
        help="prices per hour, for --table cost and --html (distbench explain prices: the format)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the HTML report, as --format html -o FILE")
    parser.add_argument("--against", metavar="RUN2.json", type=Path, help="with --html: another run to compare with")
    for name, row in PAGE_FILES.items():
        parser.add_argument(f"--{name}", metavar=row.metavar, type=Path, help=f"with --html: {row.help}")


def _compare(options: argparse.Namespace) -> Iterator[str]:
    tolerance = FRACTION("--tolerance", options.tolerance)
    old, new = (_read_possible(path) for path in (options.old, options.new))
    comparison = compare_runs(old, new, tolerance=tolerance)
    if not comparison.verdicts and not comparison.lost:
        raise DistbenchError(f"{options.old} and {options.new} have no judged case")
    counts: Counter[str] = Counter()
    for name, verdicts in comparison.verdicts.items():
        counts.update(v.kind for v in verdicts if v.is_judged)
        changed = [v for v in verdicts if not v.row.is_quiet]
        if changed:
            yield str(name)
            header, texts, note = verdict_rows(changed)
            yield from [*layout(header, texts, left=2), *note]
            reasons = Counter(v.reason for v in changed if v.reason)
            yield from (f"   {reason} ({counted(number, 'metric')})" for reason, number in reasons.items())
            yield ""
    yield from (f"failed in {options.new}: {name}" for name in comparison.failed)
    yield from (f"only in {options.old}: {name}" for name in comparison.lost)
    yield from (f"only in {options.new}: {name}" for name in comparison.added)
    total = sum(counts.values())
    cases = len(comparison.verdicts)
    of = f"{counted(total, 'metric')} of {counted(cases, 'case')}"
    yield f"{of}: {', '.join(f'{number} {kind}' for kind, number in counts.items()) or 'nothing judged'}"
    if comparison.few:
        yield (
            f"{comparison.few} cases of {options.old} have fewer than {FEWEST_LAUNCHES} launches, so their noise is "
            f"unknown: measure both runs with --distbench-launches {FEWEST_LAUNCHES}"
        )
    rows = [v.row for verdicts in comparison.verdicts.values() for v in verdicts if v.is_judged]
    has_failed = any(row.fails for row in rows) or comparison.failed or comparison.lost
    if options.fail and (has_failed or not any(row.is_answer for row in rows)):
        raise NegativeError


def _read_possible(path: Path) -> RunRecord:
    """Read a run record. Raises DistbenchError if a judged metric has a value that cannot have been measured."""
    record = read_run_record(path)
    for result in record.results:
        if why := impossible_value(result.launches):
            raise DistbenchError(f"{path}: {result.nodeid}: {why}; it cannot be judged, so measure again")
    return record


def _report(options: argparse.Namespace) -> Iterator[str]:
    record = read_run_record(options.run)
    if options.html is not None:
        check_target(options.html, PAGE_SIGN, option="report --html")
    if options.output is not None and options.output.exists() and options.output.samefile(options.run):
        raise ConfigurationError(f"report -o {options.output} is the run record itself, which would be overwritten")
    if any(path is not None for path in (options.html, options.against, *_page_files(options).values())):
        yield from _write_page(record, options)
        return
    if not options.table and options.format == "text" and options.output is None and options.prices is None:
        yield from _summary(record)
        return
    chosen = FORMATS[options.format]
    takers = [name for name, kind in TABLES.items() if "prices" in kind.takes]
    if options.prices is not None and (chosen.is_whole or options.table not in takers):
        raise ConfigurationError(
            f"report --prices is for --html and for --table {', '.join(takers)} in a format of tables: leave it out"
        )
    if chosen.is_whole and options.table:
        raise ConfigurationError(f"report --format {options.format} is for the whole run: leave out --table")
    tables, errors = tables_of(record) if chosen.is_whole else (_chosen(record, options), [])
    if options.output is not None:
        with replace_file(options.output, next_step="Give -o a writable place") as out:
            _write(record, tables, out, options)
        rows = sum(len(table.texts) for table in tables.values())
        what = options.format if chosen.is_whole else counted(rows, "row")
        yield f"{what} written to {options.output}{chosen.opens_in and f': open it in {chosen.opens_in}'}"
    elif chosen.is_text:
        _write(record, tables, sys.stdout.buffer, options)
    else:
        raise ConfigurationError(f"report --format {options.format} is no text: give -o FILE")
    for name in chosen.left_out(record):
        print(f"not in {options.format}: {name}", file=sys.stderr)
    if errors:
        raise DistbenchError(f"written without the parts that failed: {'; '.join(map(str, errors))}")


def _write(record: RunRecord, tables: Mapping[str, DataTable], out: BinaryIO, options: argparse.Namespace) -> None:
    try:
        write_as(options.format, record, tables, out)
    except TableError as error:
        raise DistbenchError(f"{options.run}: {error}") from error


def _write_page(record: RunRecord, options: argparse.Namespace) -> Iterator[str]:
    others = (options.table, options.output, options.format != "text")
    adding = ["--against RUN", *(f"--{name} {row.metavar}" for name, row in PAGE_FILES.items())]
    if options.html is None or any(others):
        raise ConfigurationError(
            f"report --html FILE writes the HTML report of the whole run ({' and '.join(adding)} add to it): "
            "leave out --table, --format and --output"
        )
    other = None if options.against is None else other_of(read_run_record(options.against))
    charts = {name: PAGE_FILES[name].charts(path) for name, path in _page_files(options).items()}
    prices = None if options.prices is None else read_prices(options.prices)
    tables, errors = tables_of(record, {} if prices is None else {"prices": prices})
    page = page_of(record, tables, other=other, charts=charts, prices=prices)
    with replace_file(options.html, next_step="Give --html a writable place") as out:
        write_page(page, out)
    yield f"HTML report written to {options.html}: open it in a browser"
    if errors:
        raise DistbenchError(f"written without the parts that failed: {'; '.join(map(str, errors))}")


def _page_files(options: argparse.Namespace) -> dict[str, Path]:
    return {name: path for name in PAGE_FILES if (path := getattr(options, name)) is not None}


def _chosen(record: RunRecord, options: argparse.Namespace) -> dict[str, DataTable]:
    name = options.table or "verdicts"
    given = {} if options.prices is None else {"prices": read_prices(options.prices)}
    if name in TABLES and (table := table_of(name, record, given)).rows:
        return {name: table}
    tables, errors = tables_of(record)
    needs = TABLES[name].needs if name in TABLES else ""
    has = ", ".join(tables) or "none"
    text = f"{options.run} has no table {name!r}{needs and f', which needs {needs}'}; it has {has}"
    raise DistbenchError("; ".join([text, *map(str, errors)]))


def _summary(record: RunRecord) -> Iterator[str]:
    yield f"{format_moment(record.started)}, {about(record.duration_s)}, pytest-distbench {record.distbench}"
    lines = summary_lines(
        record.results,
        record.remarks,
        verbosity=1,
        commands={"record": record.record_command or UNKNOWN_COMMAND},
        folder=Path("baselines"),
        took_s=record.duration_s,
    )
    yield from (line.text for line in [*ending_lines(record), *lines])
    if record.results:
        yield sentence(record.results, missing=len(record.missing)).text
    for result in record.results:
        for launch in result.launches:
            if launch.outcome == "failed":
                yield f"{result.nodeid}: launch {launch.index + 1} failed: {launch.reason}"


GOOD, BAD = 0, 1
SKIP = 125  # git tries a commit nearby
ABORT = 128  # git ends its search: from here on it takes no exit code for an answer

_PYTEST_FAILED = 1
_ONE_LAUNCH = ("--distbench-launches=1:1", "--distbench-confirm=off")


def _add_verdict(parser: argparse.ArgumentParser) -> None:
    take_pytest_options(parser, "[--metric NAME] [--exact] TEST [PYTEST OPTION ...]")
    parser.add_argument("--metric", metavar="NAME", default="", help="only this metric decides, or one number of it")
    parser.add_argument("--exact", action="store_true", help="only exact metrics decide: one launch is enough")


def _verdict(options: argparse.Namespace) -> Iterator[str]:
    arguments = options.pytest_arguments
    if not arguments:
        yield "no test: distbench verdict [--metric NAME] [--exact] test_a.py::test_b [PYTEST OPTION ...]"
        raise NegativeError(ABORT)
    with tempfile.TemporaryDirectory(prefix="distbench-verdict-") as folder:
        record = Path(folder, "run.json")
        exact = _ONE_LAUNCH if options.exact else ()
        code = run_pytest([*arguments, *exact, f"--distbench-json={record}"])
        if code not in (0, _PYTEST_FAILED) or not record.exists():
            yield f"skip: pytest ended with exit code {code} and measured nothing"
            raise NegativeError(SKIP)
        run = read_run_record(record)
    answer, why = judge(run, metric=options.metric, is_exact=options.exact)
    yield f"{ {GOOD: 'good', BAD: 'bad'}.get(answer, 'skip') }: {why}"
    if answer:
        raise NegativeError(answer)


def judge(run: RunRecord, *, metric: str, is_exact: bool) -> tuple[int, str]:
    """The exit code of ``distbench verdict``, and why: bad if a verdict regressed, good if none did, else skip.

    Args:
        metric: name of the metric to judge, with or without its point; "" for all. ``is_exact``: no noisy ones.
    """
    text = [
        (f"{result.nodeid}: {metric_text(verdict)} is {verdict.kind}: {verdict.code}", verdict.row)
        for result in run.results
        for verdict in result.verdicts
        if verdict.is_judged
        and (not metric or metric in (verdict.metric, verdict.name))
        and (not is_exact or verdict.is_exact)
    ]
    if worse := [text for text, row in text if row.is_answer and row.fails]:
        return BAD, worse[0]
    if failed := [f"{r.nodeid}: {r.headline}" for r in run.results if r.launches[-1].outcome == "failed"]:
        return SKIP, failed[0]
    if run.failed_besides:
        return SKIP, "a test failed without measuring anything, or a module could not be collected"
    if unknown := [text for text, row in text if not row.is_answer or row.is_reported]:
        return SKIP, unknown[0]
    wanted = metric or ("an exact metric" if is_exact else "a metric")
    return (GOOD, "nothing is worse") if text else (SKIP, f"no verdict on {wanted}")


COMPARE = Subcommand("judge one run record against another, as if it were the baseline", _add_compare, _compare)
REPORT = Subcommand("show what a run measured and reported", _add_report, _report)
VERDICT = Subcommand(
    "run a test for git bisect run; exit code 0: as good as its baseline, 1: worse, 125: unknown",
    _add_verdict,
    _verdict,
)
