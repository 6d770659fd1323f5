"""The HTML report: its cases, what is drawn, and its file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from support.cases import ON_TWO
from support.fingerprints import MIB, of, reduce
from support.metrics import baseline_of, passed
from support.results import PAIRED, STORED, point, result, run, verdict
from support.stores import HUNG

from pytest_distbench.judging.remarks import find_causes
from pytest_distbench.records.iteration import CaseTrace
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Confirmation, OtherSideRecord, RunRecord
from pytest_distbench.report.page.content import (
    BROKEN,
    COLUMNS,
    MEASURED,
    SKIPPED,
    WITHOUT_SCRIPT,
    other_of,
    page_of,
    write_page,
)
from pytest_distbench.report.tables import tables_of
from pytest_distbench.report.verdicts import case_table


def launches(*values: float, name: str = "step") -> list[LaunchRecord]:
    measured = (Sample(name=name, unit="s", better="lower", value=value) for value in values)
    return [passed(sample, index=i) for i, sample in enumerate(measured)]


ROW = ("cells", "severity", "metric", "unit", "is_told", "reason", "values", "others", "base", "allowed", "now")


def page(*results: object, **changes: object) -> SimpleNamespace:
    """What the page gets, of which the cases and their rows can be asked for parts that were left out."""
    record = run(*results, **changes)
    made = page_of(record, tables_of(record)[0])
    usual = {"note": "", "is_first": False, "headline": "", "story": [], "notes": [], "accept": "", "charts": []}
    cases = [SimpleNamespace(**{**usual, **case}) for case in made["cases"]]
    for case in cases:
        case.rows = [SimpleNamespace(**dict(zip(ROW, row, strict=True))) for row in case.rows]
    return SimpleNamespace(**{"notes": [], "tables": [], **made, "cases": cases})


def only_case(*results: object, **changes: object) -> SimpleNamespace:
    [case] = page(*results, **changes).cases
    return case


def cells(row: SimpleNamespace, *names: str) -> list[str]:
    texts = {name: text for (name, *_), text in zip(COLUMNS, row.cells, strict=True)}
    return [texts[name] for name in names]


def test_the_most_severe_cases_come_first_and_what_all_share_is_shown_once() -> None:
    steady, better = result(verdict("within-threshold")), result(verdict("better"))
    red, broken = result(verdict("beyond-threshold"), outcome="failed"), result(launches=[HUNG], outcome="failed")
    found = page(steady, better, red, broken)
    assert [case.state for case in found.cases] == [BROKEN, "regressed", "improved", "unchanged"]
    assert found.counts == {BROKEN: 1, "regressed": 1, "improved": 1, "unchanged": 1}

    quiet = page(result(verdict("within-threshold"), point(4)))
    line = "software differs from the baselines': torch 2.13.0 -> 2.14.0 (1 case)"
    assert [note.text for note in quiet.notes] == [line]
    [untold] = page(result(verdict("noise", reason="too noisy"), reference=PAIRED)).cases
    assert [row.reason for row in untold.rows] == ["too noisy"]
    assert not [note for note in found.notes if "too noisy" in note.text]

    found = {table["title"]: table for _, table, _ in page(result(verdict())).tables}
    assert {"launches", "environment", "record"} <= found.keys()
    assert "verdicts" not in found
    assert found["launches"]["right"][:4] == [False, True, False, True]

    record = run(result(verdict(), launches=launches(0.03)), commit="1234567890abcdef")
    name, cases = other_of(record)
    assert name == "2026-01-02 03:04 1234567890"
    assert cases == {page(result(verdict())).cases[0].key: {"step": [0.03]}}

    settings = {"world-size": "4", "gpu": "true", "json": "run.json", "unknown": "1", "against-tolerance": "9 %"}
    case = only_case(result(verdict()), settings=settings)
    assert (
        case.command == "pytest 'suites/test_a.py::test_a[ws2]' --distbench-world-size=4 --distbench-gpu "
        "-o 'distbench_against_tolerance=9 %'"
    )
    case = only_case(result(verdict()), settings=settings, command="pytest suites --world-size=4 --gpu")
    assert case.command.startswith("pytest 'suites/test_a.py::test_a[ws2]' --world-size 4 --gpu ")


def test_a_case_has_its_launches_medians_and_what_became_of_ranks() -> None:
    [row] = only_case(result(verdict(mde=0.25), launches=launches(0.03, 0.031, 0.029, 0.03, 0.032))).rows
    assert cells(row, "current", "baseline", "ratio", "threshold") == ["30 ms", "20 ms", "+50.0 %", "+10%"]
    assert (row.values, row.base, row.allowed, row.now) == ([0.03, 0.031, 0.029, 0.03, 0.032], 0.02, 0.1, 0.03)
    assert cells(row, "interval", "noise", "mde") == ["29 ms to 32 ms", "3.8%", "+25.0%"]

    stored = baseline_of([0.04, 0.09], minimum=[0.01, 0.04], p95=[0.04, 0.09])
    before = replace(STORED, metrics={"step": stored})
    [row] = only_case(result(verdict(), launches=launches(0.03), reference=before)).rows
    assert (row.values, row.others) == ([0.03], {"baseline": [0.04, 0.09]})
    fast = verdict(statistic="sqrt(min x p25)")
    [row] = only_case(result(fast, launches=launches(0.03), reference=before)).rows
    assert row.others == {"baseline": [0.02, 0.06]}, "dots are what the verdict's number is made of"

    turns = Confirmation(revision="c", here="d", launches=launches(0.05), baselines=launches(0.04))
    confirmed = result(verdict("cleared"), launches=launches(0.03), reference=before, confirmation=turns)
    [row] = only_case(confirmed).rows
    assert (row.values, row.others) == ([0.05], {"A/B baseline commit": [0.04]})
    [row] = only_case(replace(confirmed, confirmation=replace(turns, baselines=[]))).rows
    assert (row.values, row.others) == ([0.05], {"baseline": [0.04, 0.09]})

    [row] = only_case(result(verdict(better="exact", unit=""), launches=launches(1.0, 2.0, 1.0, 2.0, 1.0))).rows
    assert cells(row, "interval", "noise") == ["", ""]

    beside = replace(PAIRED, launches=launches(0.02, 0.021))
    [row] = only_case(result(verdict(), launches=launches(0.03), reference=beside)).rows
    assert row.others == {"baseline": [0.02, 0.021]}

    case = only_case(result(launches=launches(0.01, 0.03, 0.02), reference=OtherSideRecord(kind="nothing")))
    assert case.state == MEASURED
    assert [cells(row, "metric", "current", "launches") for row in case.rows] == [["step", "18.17 ms", "3"]]

    assert only_case(result(trace=CaseTrace(path="a.json.gz"))).notes == ["trace of test_a[ws2]: a.json.gz"]
    assert only_case(result(launches=[HUNG], outcome="failed")).story[0] == "launch 1: hung in body"
    assert not only_case(result(verdict("within-threshold"))).story
    case = only_case(result(verdict("beyond-threshold"), outcome="advisory", headline="step +50 %"))
    assert (case.note, case.headline, case.is_first, bool(case.story)) == ("advisory", "step +50 %", True, True)

    case = only_case(
        result(launches=[replace(HUNG, reason="Authorization: Bearer abcdef0123456789")], outcome="failed")
    )
    assert "abcdef0123456789" not in "".join(case.story)


def test_a_matrix_stands_above_the_cases_and_what_did_not_run_is_skipped() -> None:
    skipped = result(outcome="skipped")
    params = {"model": "transformers:llama", "layout": "ddp"}
    made = page(replace(skipped, case=replace(skipped.case, params=params)))

    [(_, matrix, classes)] = made.above
    assert matrix["rows"][0][:2] == ["transformers:llama", "not run"]
    assert classes["not run"] == "soft"
    assert "models" not in [table["title"] for _, table, _ in made.tables]
    assert [case.state for case in made.cases] == [SKIPPED]


def test_the_row_of_the_communication_shows_what_is_sent() -> None:
    sent = [
        LaunchRecord(index=0, outcome="passed", wall_s=1.0, fingerprints={"first": of(), "step": of(reduce(MIB, 4))})
    ]
    changed = verdict("communication", metric="fingerprint", better="exact", unit="", reason="r", differences=["d"])
    changed = replace(changed, current=None, baseline=None)
    before = replace(STORED, fingerprints={"first": of(), "step": of(reduce(MIB, 2))})
    made = result(changed, launches=sent, reference=before, outcome="failed", headline="communication changed: r")
    made = replace(made, causes=find_causes(made))
    case = only_case(made)
    [row] = case.rows
    assert [*cells(row, "current", "baseline"), row.reason] == ["4 calls, 4 MiB", "2 calls, 2 MiB", ""]
    [line] = [line.text for line in case_table(made, show_all=False) if "communication" in line.text]
    assert "communication  4 calls, 4 MiB  2 calls, 2 MiB  changed" in line

    other = replace(before, fingerprints={"step": of(reduce(2 * MIB, 2), reduce(0, 2))})
    [row] = only_case(replace(made, reference=other)).rows
    now, then = cells(row, "current", "baseline")
    assert (now, then) == (f"{then}, not the same", "4 calls, 4 MiB")
    assert case.story[:2] == ["Communication per step changed:", "  d"]
    grids = [chart["title"] for chart in case.charts if chart["type"] == "grid"]
    assert grids == ["Communication in an iteration of step"]


def test_a_failed_case_has_the_command_that_accepts_it_where_one_does() -> None:
    red = result(verdict("beyond-threshold"), outcome="failed")
    case = only_case(red)
    assert case.accept == f"{case.command} --distbench-update"

    assert not only_case(result(verdict("within-threshold"))).accept
    assert not only_case(replace(red, reference=PAIRED)).accept
    assert not only_case(replace(red, verdicts=[verdict("bound")])).accept
    assert not only_case(result(launches=[HUNG], outcome="failed")).accept


def test_a_case_has_the_colour_of_its_most_severe_verdict() -> None:
    quiet, unknown = verdict("within-threshold"), verdict("noise", metric="other")
    [case] = page(result(quiet, unknown)).cases
    assert (case.state, case.mark, case.severity) == ("inconclusive", "?", "doubt")
    assert [(*cells(row, "mark"), row.severity) for row in case.rows] == [("?", "doubt"), (" ", "plain")]
    [blind] = page(result(verdict("low-power"), verdict("within-threshold", metric="other"))).cases
    assert (blind.state, blind.severity) == ("unchanged", "plain")
    told = [("unchanged, low power", "doubt"), ("unchanged", "plain")]
    assert [(*cells(row, "verdict"), row.severity) for row in blind.rows] == told


def test_a_run_is_described_by_commit_branch_pull_request_and_host_if_known() -> None:
    facts = dict(page(commit="1234567890abcdef1234-dirty", branch="faster", pull_request="12", host="node7").facts)
    assert facts["commit"] == "1234567890, with uncommitted changes"
    assert (facts["branch"], facts["pull request"], facts["host"]) == ("faster", "#12", "node7")
    assert not {"branch", "pull request", "host"} & dict(page(commit="1234567890abcdef1234").facts).keys()


@pytest.mark.parametrize("changes", [{"world_size": 4}, {"backend": "nccl"}, {"around": {"cpus": "0.5"}}])
def test_cases_under_other_conditions_are_others(changes: dict[str, object]) -> None:
    made = result(verdict())
    other = replace(made, case=replace(made.case, conditions=replace(ON_TWO, **changes)))

    assert only_case(made).key != only_case(other).key


HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e`*_[a](http://b)&\"'"


def written(record: RunRecord, against: RunRecord | None = None) -> str:
    out = io.BytesIO()
    other = None if against is None else other_of(against)
    write_page(page_of(record, tables_of(record)[0], other=other), out)
    return out.getvalue().decode()


def data_of(page: str) -> dict[str, Any]:
    [packed] = re.findall(r'<script id="data" type="application/octet-stream">([^<]*)</script>', page)
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


class Elements(HTMLParser):
    """The elements of a page, with what is in the scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_it_can_be_read_without_a_script() -> None:
    page = written(run(result(verdict("beyond-threshold"), outcome="failed", headline="step +50.0 % (threshold +10%)")))
    readable = page.partition("<main")[2].partition("</main>")[0]

    assert "<h1>distbench: 1 of 1 case failed: a timing regressed in test_a[ws2]</h1>" in readable
    assert "step +50.0 % (threshold +10%)" in readable
    assert "step: regressed +50.0 % (20 ms -&gt; 30 ms)" in readable
    assert "pytest &#x27;suites/test_a.py::test_a[ws2]&#x27;" in readable


def test_of_many_failures_the_first_are_readable_and_all_are_in_the_data() -> None:
    failed = result(verdict("beyond-threshold"), outcome="failed")
    page = written(run(*[failed] * (WITHOUT_SCRIPT + 3)))

    assert page.count("<h2>") == WITHOUT_SCRIPT
    assert "<p>Failed: 3 more</p>" in page
    assert len(data_of(page)["cases"]) == WITHOUT_SCRIPT + 3


def test_its_policy_allows_its_own_script_and_style_and_nothing_else() -> None:
    page = written(run(result(verdict())))
    [policy] = [tag["content"] for name, tag in Elements(page).tags if "Content-Security-Policy" in tag.values()]

    def allowed(content: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy == (
        f"default-src 'none'; script-src {allowed(script)}; style-src {allowed(style)}; base-uri 'none'; "
        "form-action 'none'"
    )


def test_it_names_nothing_outside_of_itself_and_another_run_stands_in_its_data() -> None:
    page = written(run(result(verdict())))
    assert not [tag for _, tag in Elements(page).tags if tag.keys() & {"src", "href", "style"}]
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg|http-equiv", "", page.partition('id="data"')[0])

    record = run(result(verdict()))
    assert data_of(written(record, against=record))["other"][0] == "2026-01-02 03:04"
    assert "other" not in data_of(written(record))


@pytest.mark.parametrize(
    ("found", "changes", "command"),
    [
        ({}, {"nodeid": f"a.py::test[{HOSTILE}]"}, ""),
        ({"metric": HOSTILE}, {}, ""),
        ({}, {"headline": HOSTILE}, ""),
        ({"reason": HOSTILE}, {}, ""),
        ({}, {}, HOSTILE),
    ],
    ids=["name", "metric", "headline", "reason", "command"],
)
def test_names_of_tests_and_files_are_never_markup(found: Any, changes: Any, command: str) -> None:
    page = written(run(result(verdict("beyond-threshold", **found), outcome="failed", **changes), command=command))

    plain = written(run(result(verdict("beyond-threshold"), outcome="failed"), command=""))
    assert [name for name, _ in Elements(page).tags] == [name for name, _ in Elements(plain).tags]
    assert not re.search("[\x1b\u202e]", page + json.dumps(data_of(page), ensure_ascii=False))


def test_a_run_without_cases_has_a_page() -> None:
    assert "<h1>distbench: nothing was measured</h1>" in written(run())
