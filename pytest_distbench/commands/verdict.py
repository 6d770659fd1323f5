"""``distbench verdict``: what one run of pytest says of a commit, as the exit code that ``git bisect run`` wants."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_distbench.commands.contract import Adder, NegativeError
from pytest_distbench.judging.fingerprint_rule import METRIC as FINGERPRINT
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.run import RunRecord
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.store.run_record import read_run_record

GOOD, BAD = 0, 1
SKIP = 125
"""git tries a commit nearby."""
ABORT = 128
"""git ends its search: from here on it takes no exit code for an answer."""

_PYTEST_FAILED, _PYTEST_INTERRUPTED = 1, 2
_ONE_LAUNCH = ("--distbench-launches=1", "--distbench-max-launches=1", "--distbench-confirm=never")


def add(add_parser: Adder) -> None:
    """Add the command. What its parser does not know is for pytest."""
    parser = add_parser(
        "verdict",
        help="run a test and answer with the exit code: 0 as good as its baseline, 1 worse, 125 not known; for "
        "git bisect run",
        usage="%(prog)s [--metric NAME] [--exact] TEST [PYTEST OPTION ...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--metric", metavar="NAME", default="", help="this metric decides alone, or with its point: this number of it"
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="only what is the same in every launch of the same code decides, such as fingerprints, so that one launch "
        "says it",
    )
    parser.set_defaults(command=_verdict, pytest_arguments=[])


def _verdict(options: argparse.Namespace) -> Iterator[str]:
    arguments = options.pytest_arguments
    if not arguments:
        yield "no test: distbench verdict [--metric NAME] [--exact] test_a.py::test_b [PYTEST OPTION ...]"
        raise NegativeError(ABORT)
    with tempfile.TemporaryDirectory(prefix="distbench-verdict-") as folder:
        record = Path(folder, "run.json")
        code = _run_pytest([*arguments, *(_ONE_LAUNCH if options.exact else ()), f"--distbench-json={record}"])
        if code == _PYTEST_INTERRUPTED:
            raise KeyboardInterrupt
        if code not in (0, _PYTEST_FAILED) or not record.exists():
            yield f"skip: pytest ended with exit code {code} and measured nothing"
            raise NegativeError(SKIP)
        run = read_run_record(record)
    answer, why = judge(run, metric=options.metric, is_exact=options.exact)
    yield f"{ {GOOD: 'good', BAD: 'bad'}.get(answer, 'skip') }: {why}"
    if answer:
        raise NegativeError(answer)


def _run_pytest(arguments: Sequence[str]) -> int:
    """Run pytest in the terminal of this process; returns its exit code."""
    process = subprocess.Popen([sys.executable, "-P", "-m", "pytest", *arguments])
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C reached pytest too: it ends its ranks
        raise


def judge(run: RunRecord, *, metric: str, is_exact: bool) -> tuple[int, str]:
    """The exit code, and why. Only what is known to be worse is bad, and only what would have been seen is good.

    Args:
        run: what was measured.
        metric: the one that counts, by its name or with its point; empty: every one that is judged.
        is_exact: only those that repeat exactly count.
    """
    told = [
        (f"{result.nodeid}: {verdict.metric} is {verdict.kind}", VERDICT_KINDS[verdict.kind])
        for result in run.results
        for verdict in result.verdicts
        if verdict.is_judged
        and (not metric or metric in (verdict.metric, verdict.name))
        and (not is_exact or _repeats_exactly(verdict))
    ]
    if worse := [text for text, kind in told if kind.is_answer and kind.fails]:
        return BAD, worse[0]
    if failed := [f"{r.nodeid}: {r.headline}" for r in run.results if r.launches[-1].outcome == "failed"]:
        return SKIP, failed[0]
    if run.failed_besides:
        return SKIP, "a test, or a module that could not be collected, failed without measuring anything"
    if unknown := [text for text, kind in told if not kind.is_answer or kind.is_told]:
        return SKIP, unknown[0]
    wanted = metric or ("an exact metric" if is_exact else "a metric")
    return (GOOD, "nothing is worse") if told else (SKIP, f"no verdict on {wanted}")


def _repeats_exactly(verdict: Verdict) -> bool:
    return verdict.metric == FINGERPRINT or verdict.kind == "lost" or METRIC_KINDS[verdict.better].repeats_exactly
