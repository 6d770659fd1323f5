"""The page as a file: readable without a script, closed to the outside, and safe whatever names it holds."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from support.results import result, run, verdict

from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.page.content import WITHOUT_SCRIPT, other_of, page_of, write_page
from pytest_distbench.report.tables import tables_of

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
