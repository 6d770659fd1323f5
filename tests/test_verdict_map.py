"""What each kind of verdict makes of a test, an update, a command and an annotation: a table that no rename may change.

A row is a code: why a verdict was given. Its columns are all that hangs on it. Two rows that raise the same kind may
differ here, as a timing and an exact number do.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from support.results import PAIRED, end_of, result, run, verdict

from pytest_distbench.commands.runs import judge
from pytest_distbench.judging.entry import is_wanted, why_not_stored
from pytest_distbench.judging.outcome import Strictness, conclude
from pytest_distbench.judging.terms import certain_failure
from pytest_distbench.records.reasons import REASONS
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding, is_found
from pytest_distbench.report.formats import workflow_commands
from pytest_distbench.run.confirm.rule import can_be_confirmed
from pytest_distbench.store.accept import NotABaseline, propose_baseline


class Row(NamedTuple):
    """A reason, and what follows from it.

    Attributes:
        code: of the reason; several rows have it for metrics of different kinds.
        kind: of the verdict.
        better: kind of the metric.
        tests: outcome by default, with --distbench-strict, with --distbench-fail-on-improvement, with
            --distbench-no-baseline=fail and =skip, and where the test is marked xfail_perf: p(assed), f(ailed),
            s(kipped), x(failed), and X where that mark is called needless.
        advisory: outcome where the test is marked so, by default and with the first three of those options: p(assed) or
            a(dvisory), which fails nothing.
        store: whether --distbench-update=failed, =changed and distbench baseline accept write it: y or n; r where an
            update refuses it.
        answers: exit code of distbench verdict; whether compare counts it as an answer and as a failure.
        again: whether it may be confirmed, ends a case at once, and counts as found by the control: y or n.
        github: e(rror), w(arning) or nothing.
        has_baseline: whether there is a number to compare with.
    """

    code: str
    kind: str
    better: str
    tests: str
    advisory: str
    store: str
    answers: str
    again: str
    github: str
    has_baseline: bool = True


ROWS = [
    Row("bound", "regressed", "lower", "fffffx", "aa", "r", "1 yy", "nny", "e"),
    Row("bound", "regressed", "exact", "fffffx", "aa", "r", "1 yy", "nyy", "e"),
    Row("bound", "regressed", "lower", "fffffx", "aa", "r", "1 yy", "nny", "e", has_baseline=False),
    Row("beyond-threshold", "regressed", "lower", "fffffx", "aa", "yyy", "1 yy", "yny", "e"),
    Row("beyond-threshold", "regressed", "higher", "fffffx", "aa", "yyy", "1 yy", "yny", "e"),
    Row("beyond-threshold", "regressed", "memory", "fffffx", "aa", "yyy", "1 yy", "nyy", "e"),
    Row("goal-missed", "regressed", "steps", "fffffx", "aa", "yyy", "1 yy", "yyy", "e"),
    Row("beyond-threshold", "regressed", "floor", "fffffx", "aa", "yyy", "1 yy", "yyy", "e"),
    Row("no-value", "regressed", "lower", "fffffx", "aa", "yyy", "1 yy", "yny", "e", has_baseline=False),
    Row("exact-number", "changed", "exact", "fffffx", "aa", "yyy", "1 yy", "nyy", "e"),
    Row("losses", "changed", "curve", "fffffx", "aa", "yyy", "1 yy", "yyy", "e"),
    Row("training-number", "changed", "same", "fffffx", "aa", "yyy", "1 yy", "yyy", "e"),
    Row("seed-lost", "changed", "curve", "fffffx", "aa", "yyy", "1 yy", "yyy", "e"),
    Row("not-measured", "missing", "lower", "fffffx", "aa", "yyy", "1 yy", "nyn", "e"),
    Row("not-measured", "missing", "exact", "fffffx", "aa", "yyy", "1 yy", "nyn", "e"),
    Row("communication", "changed", "exact", "fffffx", "aa", "yyy", "1 yy", "nyn", "e"),
    Row("run-specific-workload", "changed", "lower", "fffffx", "aa", "yyy", "125 ny", "nnn", "e"),
    Row("not-evaluated", "not evaluated", "lower", "pppppp", "pp", "nnn", "125 nn", "ynn", ""),
    Row("noise", "inconclusive", "lower", "pfpppp", "pa", "nnn", "125 nn", "ynn", "w"),
    Row("noise", "inconclusive", "lower", "pfpfsp", "pa", "nnn", "125 nn", "ynn", "w", has_baseline=False),
    Row("flat-curve", "inconclusive", "curve", "pfpppp", "pa", "nnn", "125 nn", "ynn", "w"),
    Row("low-power", "unchanged", "lower", "pfpppp", "pa", "nnn", "125 nn", "ynn", ""),
    Row("too-few-digits", "unchanged", "curve", "pfpppp", "pa", "nnn", "125 nn", "ynn", ""),
    Row("other-workload", "inconclusive", "lower", "pfpppp", "pa", "nyy", "125 nn", "ynn", "w"),
    Row("other-software", "inconclusive", "exact", "pfpppp", "pa", "nyy", "125 nn", "ynn", "w"),
    Row("unseeded", "inconclusive", "curve", "pfpppp", "pa", "nnn", "125 nn", "ynn", "w"),
    Row("unseeded", "inconclusive", "curve", "pfpfsp", "pa", "nnn", "125 nn", "ynn", "w", has_baseline=False),
    Row("no-baseline", "new", "lower", "pppfsp", "pa", "nyy", "125 nn", "ynn", "w", has_baseline=False),
    Row("numerics", "unchanged", "curve", "pppppp", "pp", "nyy", "125 yn", "ynn", "w"),
    Row("slower-machine", "environment", "lower", "pppppp", "pp", "nyy", "125 yn", "ynn", "w"),
    Row("better", "improved", "lower", "ppfppX", "pa", "nyy", "0 yn", "ynn", ""),
    Row("within-bound", "unchanged", "lower", "pppppX", "pp", "nyy", "0 yn", "ynn", "", has_baseline=False),
    Row("within-threshold", "unchanged", "lower", "pppppX", "pp", "nnn", "0 yn", "ynn", ""),
    Row("equal", "unchanged", "exact", "pppppX", "pp", "nnn", "0 yn", "ynn", ""),
    Row("equal", "unchanged", "curve", "pppppX", "pp", "nnn", "0 yn", "ynn", ""),
]


def _made(row: Row) -> Finding:
    made = verdict(row.code, better=row.better, metric="fingerprint" if row.code == "communication" else "m")
    return made if row.has_baseline else replace(made, baseline=None)


def _strictness(*options: str) -> Strictness:
    return Strictness(options=frozenset(options))


def _tests(found: Finding) -> str:
    policies = [
        Strictness(),
        _strictness("distbench-strict"),
        _strictness("distbench-fail-on-improvement"),
        Strictness(no_baseline="fail"),
        Strictness(no_baseline="skip"),
    ]
    outcomes = "".join(conclude(result(found), policy).outcome[0] for policy in policies)
    marked = result(found, xfail_perf="known")
    expected = conclude(marked, Strictness()).outcome[0]
    printed = end_of([marked])
    needless = any("no longer needed" in line.text for line in printed)
    return outcomes + ("X" if needless else expected)


def _advisory(found: Finding) -> str:
    marked = result(found, advisory="flaky")
    all_options = Strictness(
        options=frozenset({"distbench-strict", "distbench-fail-on-improvement"}), no_baseline="fail"
    )
    return "".join(conclude(marked, policy).outcome[0] for policy in (Strictness(), all_options))


def _store(found: Finding) -> str:
    written = [is_wanted(mode, [found], is_new=False) for mode in ("failed", "changed")]
    try:
        propose_baseline(result(found, reference=PAIRED), None, mode="changed", force=False)
    except NotABaseline:
        written.append(True)
    else:
        written.append(False)
    return "r" if why_not_stored([], [found]).startswith("m violates") else "".join("ny"[w] for w in written)


def _answers(found: Finding) -> str:
    code, _ = judge(run(result(found)), metric="", is_exact=False)
    return f"{code} {'ny'[found.row.is_answer]}{'ny'[found.row.fails]}"


def _again(found: Finding) -> str:
    is_certain = bool(certain_failure([found]))
    return "".join("ny"[it] for it in (can_be_confirmed([found]), is_certain, is_found(found)))


def _github(found: Finding) -> str:
    case = result(found)
    outcome = conclude(case, Strictness()).outcome
    others = result(verdict("within-threshold"), nodeid="test_b.py::test_b")
    said = workflow_commands([replace(case, outcome=outcome), others])
    return said[0].removeprefix("::")[0] if said else ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.code}-{row.better}")
def test_what_follows_from_a_verdict(row: Row) -> None:
    found = _made(row)
    seen = row._replace(
        tests=_tests(found),
        advisory=_advisory(found),
        store=_store(found),
        answers=_answers(found),
        again=_again(found),
        github=_github(found),
    )
    assert (seen, found.kind) == (row, row.kind)


def test_every_reason_but_one_for_information_has_a_row() -> None:
    """What a reason leads to is the same for all of a verdict kind, so that one row of the kind will do."""
    assert {REASONS[row.code].verdict for row in ROWS} == {reason.verdict for reason in REASONS.values()}
