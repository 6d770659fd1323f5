"""The page in a real browser: it opens without a request, can be searched, unfolded, dressed and compared."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import NAMES, Tab, browser, find_browser
from support.cases import ON_TWO
from support.fingerprints import MIB, of, reduce
from support.results import point, result, run, verdict
from support.trends import daily, steps

from pytest_distbench.records.case import Case
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.places import CasePlaces, PlaceRow
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.page.content import other_of, page_of, write_page
from pytest_distbench.report.tables import tables_of
from pytest_distbench.tools.history import charts_of_trends

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"no browser: none of {', '.join(NAMES)} is installed (apt-get install chromium-headless-shell)",
)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser(find_browser() or "") as opened:
        yield opened


def case(name: str, *values: float, code: str = "within-threshold", outcome: str = "passed") -> CaseResult:
    measured = [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[Sample(name="step", unit="s", better="lower", value=value)],
        )
        for i, value in enumerate(values)
    ]
    made = Case(test="suites/test_a.py::test_a", id=name, conditions=ON_TWO, device="cpu")
    return result(
        verdict(code), launches=measured, outcome=outcome, nodeid=f"suites/test_a.py::test_a[{name}]", case=made
    )


RED = case("red", 0.03, 0.031, 0.029, code="beyond-threshold", outcome="failed")
GREEN = case("green", 0.02, 0.021, 0.019)
SWEEP = replace(result(*[point(2**k) for k in range(3, 12)]), nodeid="suites/test_a.py::test_sweep[ws2]")


def page(folder: Path, *results: CaseResult, against: RunRecord | None = None, name: str = "page") -> Path:
    record = run(*results)
    path = folder / f"{name}.html"
    with path.open("wb") as out:
        other = None if against is None else other_of(against)
        write_page(page_of(record, tables_of(record)[0], other=other), out)
    return path


def search(tab: Tab, text: str) -> None:
    tab.run(
        f"(s => {{ s.value = {json.dumps(text)}; s.dispatchEvent(new Event('input')) }})"
        "(document.querySelector('input[type=search]'))"
    )


def titles(tab: Tab) -> list[str]:
    return list(tab.run("[...document.querySelectorAll('section details.card > summary > b')].map(b => b.textContent)"))


def test_it_opens_quietly_with_failures_unfolded_and_the_rest_folded(tab: Tab, tmp_path: Path) -> None:
    path = page(tmp_path, GREEN, RED, SWEEP)
    tab.requests.clear()
    tab.open(path)

    assert titles(tab) == ["test_a[red]", "test_a[green]", "test_a[ws2]"]
    tab.wait("document.querySelector('details.card.bad svg .dot')")
    assert tab.run("[...document.querySelectorAll('section details.card')].map(d => d.open)") == [True, False, False]
    assert tab.requests == [path.as_uri()]
    assert tab.complaints == []


def test_a_search_finds_tests_and_verdicts(tab: Tab, tmp_path: Path) -> None:
    tab.open(page(tmp_path, GREEN, RED, SWEEP))

    search(tab, "A[WS2]")
    assert titles(tab) == ["test_a[ws2]"]
    search(tab, "REGRESSED red")
    assert titles(tab) == ["test_a[red]"]
    search(tab, "")
    tab.run("document.querySelector('.chip[data-state=unchanged]').click()")
    assert titles(tab) == ["test_a[green]", "test_a[ws2]"]


def sized(ranks: int, *step_s: float) -> CaseResult:
    """A training without a goal: for each of these step times a rate, and so a line in its chart of the cost."""
    measured = [
        Sample(name=f"tokens{i}_per_second", unit="", better="info", value=1 / time_s)
        for i, time_s in enumerate(step_s)
    ]
    made = case("", 0.02)
    conditions = replace(made.case.conditions, world_size=ranks)
    launch = replace(made.launches[0], measurements=measured)
    return replace(made, case=replace(made.case, conditions=conditions), launches=[launch])


def test_labels_of_points_that_lie_close_do_not_cover_each_other(tab: Tab, tmp_path: Path) -> None:
    close = [1 + 0.01 * i for i in range(8)]
    tab.open(page(tmp_path, sized(1, *close), sized(2, *(0.6 * time_s for time_s in close))))
    tab.run("[...document.querySelectorAll('details.card')].find(d => d.textContent.startsWith('cost')).open = true")
    tab.wait("document.querySelector('svg .dot')")
    boxes = tab.run(
        "[...document.querySelectorAll('svg text.halo')].map(t => t.getBoundingClientRect())"
        ".map(b => [b.left, b.top, b.right, b.bottom])"
    )

    assert len(tab.run("[...document.querySelectorAll('svg .dot')].map(d => d.tagName)")) == 16
    assert 2 <= len(boxes) < 16
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            across, down = (min(one[k + 2], other[k + 2]) - max(one[k], other[k]) for k in (0, 1))
            assert across <= 0 or down <= 3, (one, other)  # a box of text is higher than its letters


def test_a_case_is_drawn_when_it_is_unfolded_and_its_charts_are_read_by_keys(tab: Tab, tmp_path: Path) -> None:
    tab.open(page(tmp_path, SWEEP))
    assert not tab.run("document.querySelectorAll('svg[tabindex]').length")

    tab.run("document.querySelector('details.card > summary').click()")
    tab.wait("document.querySelectorAll('figure svg[tabindex]').length === 2")
    tab.run("document.querySelector('figure svg[tabindex]').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.run("document.querySelector('figure output').textContent") == "this run, message size 16 B: 8e-7 GB/s"
    tab.run("document.querySelector('figure details summary').click()")
    tab.wait("document.querySelectorAll('figure details tbody tr').length === 18")
    assert tab.complaints == []


def test_an_outlier_is_marked_with_its_value_and_flattens_nothing(tab: Tab, tmp_path: Path) -> None:
    """Three launches within 2 %, and a metric at +350 %."""
    near = replace(RED.launches[0], measurements=[Sample(name="step", unit="s", better="lower", value=0.0204)])
    far = Sample(name="far", unit="s", better="lower", value=0.09)
    launches = [replace(near, index=i, measurements=[*near.measurements, *([far] if i == 0 else [])]) for i in range(3)]
    tab.open(
        page(tmp_path, replace(RED, verdicts=[verdict(), verdict("beyond-threshold", metric="far")], launches=launches))
    )
    tab.wait("document.querySelector('figure.wide svg path.dot')")

    ticks = tab.run("[...document.querySelectorAll('figure.wide svg text:not(.on)')].map(t => t.textContent)")
    assert tab.run("[...document.querySelectorAll('figure.wide svg text.halo')].map(t => t.textContent)") == [
        "+350.0 %"
    ]
    assert max(float(tick.removesuffix(" %")) for tick in ticks if tick.endswith(" %")) <= 10

    beyond = replace(near, measurements=[Sample(name="step", unit="s", better="lower", value=0.036)])
    tab.open(page(tmp_path, replace(RED, verdicts=[verdict(threshold=0.6)], launches=[near, near, near, beyond])))
    tab.wait("document.querySelector('figure.wide svg[tabindex] circle.dot')")
    assert tab.run("document.querySelectorAll('figure.wide svg path.dot').length") == 0, (
        "0.8 is near a threshold of 0.6"
    )

    spike = [1.0, 0.99, 0.98, 0.97, 900.0, 0.96, 0.95]
    curve = Sample(name="loss", unit="", better="info", value=0.95, values=spike)
    tab.open(page(tmp_path, replace(RED, launches=[replace(near, measurements=[curve])])))
    tab.wait("document.querySelector('.charts svg path.dot')")
    texts = tab.run("[...document.querySelectorAll('.charts svg text')].map(t => t.textContent)")
    assert "900" in texts
    assert {"0.95", "1"} <= {*texts}


def test_a_history_is_drawn_by_date_and_at_a_click_by_commit(tab: Tab, tmp_path: Path) -> None:
    way = dataclasses.replace(daily(steps(20, 0.02, 0.03)), result=RED)
    record = run(RED)
    with (tmp_path / "page.html").open("wb") as out:
        write_page(page_of(record, tables_of(record)[0], charts={"history": charts_of_trends([way])}), out)
    ticks = "[...document.querySelectorAll('.charts svg text[text-anchor=middle]')].map(t => t.textContent)"
    tab.open(tmp_path / "page.html")
    tab.wait(f"{ticks}.length")
    assert "2026-01-15" in tab.run(ticks)

    tab.click(".ways button:last-child")
    tab.wait(f"{ticks}.some(text => text.startsWith('cccccccc'))")
    assert {tick[:8] for tick in tab.run(ticks)} == {"cccccccc"}
    assert tab.complaints == []


def test_what_is_sent_and_both_commands_stand_with_a_failed_case(tab: Tab, tmp_path: Path) -> None:
    sent = [replace(RED.launches[0], fingerprints={"step": of(reduce(MIB, 4))})]
    reference = replace(RED.reference, fingerprints={"step": of(reduce(MIB, 2))})
    tab.open(page(tmp_path, replace(RED, launches=sent, reference=reference)))
    tab.wait("document.querySelector('tr.changed')")

    cells = tab.run("[...document.querySelector('tr.changed').children].map(td => td.textContent)")
    assert cells == ["*", "all_reduce", "2", "4", "1 MiB", "float32"]
    commands = tab.run("[...document.querySelectorAll('.command')].map(row => row.textContent)")
    again = "pytest 'suites/test_a.py::test_a[red]'"
    assert commands == [f"Run it again{again}copy", f"Accept as baseline{again} --distbench-updatecopy"]


def test_a_place_has_a_bar_for_each_side_below_the_sentence(tab: Tab, tmp_path: Path) -> None:
    times: tuple[float, float] = (0.0031, 0.00623)
    row = PlaceRow(place=("layers.py", 9, "norm"), what="aten::mm", calls=(12, 24), amounts=times, share=0.92)
    found = CasePlaces(metric="step", rows=[row], sentence="92 % of the added 3.4 ms: layers.py:9 in norm")
    tab.open(page(tmp_path, replace(RED, places=found)))
    drawn = "document.querySelectorAll('.charts svg[tabindex] rect.box')"
    tab.wait(f"{drawn}.length")
    bars = tab.run(f"[...{drawn}].map(bar => +bar.getAttribute('width'))")
    texts = tab.run("[...document.querySelectorAll('.charts svg text.on')].map(text => text.textContent)")

    assert tab.run("document.querySelector('.charts figure > p').textContent") == found.sentence
    assert bars[0] / bars[1] == pytest.approx(times[0] / times[1], rel=0.01)
    assert texts == ["layers.py:9 in norm", "3.1 ms", "6.23 ms"]
    assert tab.complaints == []


def test_on_a_phone_nothing_but_tables_is_wider_than_the_screen(tab: Tab, tmp_path: Path) -> None:
    tab.resize(390, 800)
    tab.open(page(tmp_path, GREEN, RED, SWEEP))
    tab.run("document.querySelectorAll('details.card').forEach(d => { d.open = true })")
    tab.wait("[...document.querySelectorAll('details.card .body')].every(body => body.childNodes.length)")
    tab.resize(390, 6000)  # draws what is unfolded

    tab.wait("document.querySelectorAll('figure svg[tabindex]').length === 4")
    assert tab.run("document.documentElement.scrollWidth") == 390
    shown = "[...document.querySelectorAll('details.bad th')].filter(th => th.offsetWidth).map(th => th.textContent)"
    assert tab.run(shown)[:3] == ["", "metric", "verdict"]
    assert "n" not in tab.run(shown)
    tab.resize(1000, 800)


def test_a_page_of_five_thousand_cases_opens_in_two_seconds_and_is_searched_at_once(tab: Tab, tmp_path: Path) -> None:
    cases = [case(f"case{i}", *(0.02 + (i * 7 + j * 3) % 50 * 1e-5 for j in range(5))) for i in range(5000)]
    path = page(tmp_path, *cases, RED)
    opened_s = tab.open(path)
    begin = time.monotonic()
    search(tab, "case4999")
    found = titles(tab)
    searched_s = time.monotonic() - begin

    assert found == ["test_a[case4999]"]
    assert path.stat().st_size < 3 * 2**20
    assert opened_s < 10  # an idle machine needs a tenth of it
    assert searched_s < 3
