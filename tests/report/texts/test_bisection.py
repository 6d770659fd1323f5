"""A search in words."""

from __future__ import annotations

from support.bisections import CLOCK, COMMITS, EXACT, state, visited
from support.results import result, verdict

from pytest_distbench.judging.bisection import Standing
from pytest_distbench.records.record import replace
from pytest_distbench.report.texts.bisection import answer_lines, followed_text, same_lines, visit_lines


def test_what_is_followed() -> None:
    assert followed_text(CLOCK) == "step of suites/test_a.py::test_a[ws2]: +20.0 % (20 ms -> 24 ms)"
    assert followed_text(EXACT) == "fingerprint of suites/test_a.py::test_a[ws2]: 1 all_reduce was added"


def test_a_visit_says_what_was_seen_and_what_remains() -> None:
    visit = visited(4, changes=[0.18, 0.19, 0.17])
    [line] = visit_lines(visit, Standing(state(CLOCK, visit), COMMITS))

    assert " ".join(line.split()) == "1 0000000000 as BAD +19.7 % over 3 pairs 4 left, about 2 visits more Commit 4"


def test_a_skipped_commit_says_why_below() -> None:
    visit = visited(4, skipped="pytest ended with exit code 4\nImportError: no module")
    lines = list(visit_lines(visit, Standing(state(EXACT, visit), COMMITS)))

    assert " ".join(lines[0].split()) == "1 0000000000 skipped 8 left, about 3 visits more Commit 4"
    assert [line.strip() for line in lines[1:]] == ["pytest ended with exit code 4", "ImportError: no module"]


def test_the_commit_and_what_shows_it() -> None:
    visits = [visited(4, has_moved=True), visited(2), visited(3)]

    assert list(answer_lines(Standing(state(EXACT, *visits), COMMITS), "test_a.py")) == [
        "found in 3 visits, 6 s:",
        "  0000000000  2026-01-02  Ada: Commit 4",
        "  fingerprint: 1 all_reduce was added",
        "look at it:  git show 0000000000",
        "measure it:  git switch --detach 0000000000 && pytest test_a.py --distbench-against HEAD~",
    ]


def test_of_a_clock_both_sides_of_the_commit_are_told() -> None:
    on, off = [0.18, 0.19, 0.17], [0.01, -0.01, 0.0]
    visits = [visited(4, changes=on), visited(4, changes=on), visited(3, changes=off), visited(3, changes=off)]
    lines = list(answer_lines(Standing(state(CLOCK, *visits), COMMITS), "test_a.py"))

    assert lines[0].startswith("found in 4 visits, 8 s, ")
    assert lines[2] == "  step: +19.7 % over 10 pairs from it on, +0.0 % over 6 pairs before"


def test_one_of_these() -> None:
    visits = [visited(4, has_moved=True), visited(2), visited(3, skipped="it does not build")]

    assert list(answer_lines(Standing(state(EXACT, *visits), COMMITS), "test_a.py")) == [
        "one of these 2 commits (3 visits, 6 s; 1 could not be measured):",
        "   50%  0000000000  2026-01-02  Ada: Commit 3",
        "   50%  0000000000  2026-01-02  Ada: Commit 4",
    ]


def test_many_are_not_listed_and_more_visits_are_proposed() -> None:
    many = [replace(COMMITS[0], hash=f"{number:040x}") for number in range(1, 31)]
    lines = list(answer_lines(Standing(state(EXACT), many), "test_a.py"))

    assert len([line for line in lines if "Ada" in line]) == 10
    assert lines[-2:] == ["  and 20 that are no likelier", "the same command with a larger --most-visits goes on"]


def test_a_merge_says_how_to_look_into_it() -> None:
    commits = [replace(c, parents=["1", "2"]) for c in COMMITS]
    visits = [visited(1, has_moved=True)]

    assert "  it is a merge; what it brought in: git log 0000000000^1..0000000000^2" in list(
        answer_lines(Standing(state(EXACT, *visits), commits), "test_a.py")
    )


def test_nothing_differs_says_what_would_have_been_found() -> None:
    known = result(verdict("unchanged", ratio=1.01, detectable=0.07), verdict(metric="other"))

    assert list(same_lines([known], ["step"])) == [
        "GOOD and BAD do not differ, as far as can be seen:",
        "  step: unchanged, +1.0 % (20 ms -> 30 ms); would have found +7%",
    ]
