"""The search of the site, in a real browser: what a user types leads to the page that answers it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import NAMES, Tab, browser, find_browser

pytestmark = [
    pytest.mark.xdist_group("site"),  # one worker builds it
    pytest.mark.skipif(find_browser() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"),
]
DOCS = Path(__file__).parents[2] / "docs"

ANSWERS = {
    "scripts": ["fsdp2", "accelerate", "torchrun script", "test unchanged torchrun script FSDP2"],
    "writing": ["slow tests"],
    "baselines": ["what do I commit to git", "what goes into gitignore", "update baselines from a CI artifact"],
    "against": ["compare two branches", "branch", "bisect"],
    "ci": ["github actions self-hosted", "self-hosted runner"],
    "hosts": ["slurm", "run under slurm", "kubernetes"],
    "noise": ["make it faster", "speed up tests", "noise floor"],
    "noise or writing": ["tolerance for one metric", "tolerance metric"],
    "triage": ["inconclusive", "flaky test", "report-only", "non-blocking"],
    "triage#quarantine-a-flaky-case": ["quarantine", "flaky"],
    "history": ["history", "trend", "history of a metric"],
    "gpus": ["which gpus share a baseline", "memory"],
}
"""What users type, by the page that the search has to list first; of two pages it may be either."""
DONE = "Search.status?.innerText.startsWith('Search finished, found')"
"""The last thing that Sphinx writes; its ``_pulse_status`` is below zero for half a second only."""
LISTED = (
    "[...document.querySelectorAll('#search-results li > a')].map(a => a.attributes.href.value.replace('.html', ''))"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    built = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, built], check=True)
    return built


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser(find_browser() or "") as opened:
        yield opened


@pytest.mark.parametrize(("page", "typed"), [(page, typed) for page, all_of in ANSWERS.items() for typed in all_of])
def test_the_first_page_that_the_search_lists_answers(page: str, typed: str, site: Path, tab: Tab) -> None:
    tab.open(site / "search.html", query=f"q={typed}", ready=DONE)

    assert tab.run(LISTED)[0].startswith(tuple(page.split(" or ")))


def test_pages_of_the_inside_come_last(site: Path, tab: Tab) -> None:
    tab.open(site / "search.html", query="q=launch", ready=DONE)
    inside = [page.startswith("dev/") for page in tab.run(LISTED)]

    assert any(inside)
    assert inside == sorted(inside)
