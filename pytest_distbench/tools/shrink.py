"""``distbench shrink``: the smallest part of a diff that keeps a test red."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.commands import NegativeError, Subcommand, run_pytest, take_pytest_options
from pytest_distbench.errors import ConfigurationError, DistbenchError
from pytest_distbench.judging.thresholds import FEWEST_PAIRS, LAST_LOOK
from pytest_distbench.records.run import RunRecord
from pytest_distbench.store.files import read_run_record
from pytest_distbench.units import counted

RECORD, PATCH, TROUBLE = "run.json", "patch", "trouble"
"""Files that ``tools/shrinking.py`` writes, as a plugin of pytest: the run record, the patch, or why there is none."""


def _add(parser: argparse.ArgumentParser) -> None:
    take_pytest_options(parser, "REF -- TEST [PYTEST OPTION ...]")
    parser.add_argument("ref", metavar="REF", help="the revision that the test is compared with, such as main")


def _run(options: argparse.Namespace) -> Iterator[str]:
    ref, arguments = options.ref, [word for word in options.pytest_arguments if word != "--"]
    if not arguments:
        raise ConfigurationError(f"shrink {ref}: no test; wanted distbench shrink REF -- test_a.py::test_b")
    with tempfile.TemporaryDirectory(prefix="distbench-shrink-") as made:
        folder = Path(made)
        ours = [f"--distbench-against={ref}", f"--distbench-json={folder / RECORD}"]
        plugin = ["-p", "pytest_distbench.tools.shrinking", f"--distbench-launches={FEWEST_PAIRS}:{LAST_LOOK}"]
        # Hunks change a file within a second, and its size may stay: Python would take its bytecode for up to date.
        variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        with open(folder / "output", "w+b") as output:
            code = run_pytest([*plugin, *arguments, *ours], stdout=output, variables=variables)
            output.seek(0)
            printed = output.read().decode(errors="replace")
        if (folder / PATCH).exists():
            sys.stdout.buffer.write((folder / PATCH).read_bytes())
            sys.stdout.flush()
            return
        if (folder / TROUBLE).exists():
            raise DistbenchError((folder / TROUBLE).read_text())
        run = read_run_record(folder / RECORD) if code in (0, 1) and (folder / RECORD).exists() else None
        if run is None or not run.results:
            print(printed.strip(), file=sys.stderr)
            raise DistbenchError(f"pytest ended with exit code {code} and measured nothing")
        yield from _why_not(run, ref, shlex.join(arguments))
    raise NegativeError


def _why_not(run: RunRecord, ref: str, arguments: str) -> Iterator[str]:
    if failed := [r for r in run.results if r.launches[-1].outcome == "failed"]:
        yield f"{failed[0].nodeid}: {failed[0].headline}"
        yield f"shrink is for metrics; for a launch that fails: git bisect run pytest {arguments}"
        return
    if new := [r for r in run.results if r.lacks_baseline]:
        yield f"{new[0].nodeid}: {new[0].verdicts[0].reason}: there is nothing to compare with"
        return
    judged = [v for r in run.results for v in r.verdicts if v.is_judged]
    count, cases = counted(sum(v.is_exact for v in judged), "exact metric"), counted(len(run.results), "case")
    yield f"green: {count} of {cases} are as in {ref}"
    for verdict in [v for v in judged if not v.is_exact]:
        yield f"{verdict.metric}: {verdict.kind}{verdict.reason and f': {verdict.reason}'}"
    if any(v.is_undecided for v in judged):
        yield "more pairs may decide it: --distbench-launches=5:60"


SHRINK = Subcommand(
    help="find the smallest part of a diff that keeps a metric of a test red, and print it as a patch; exit code 1: "
    "none is red",
    add_options=_add,
    run=_run,
)
