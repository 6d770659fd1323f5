"""Where a search keeps how far it has come."""

from __future__ import annotations

from pathlib import Path

from support.bisections import CLOCK, state, visited

from pytest_distbench.store.bisections import BISECTIONS, place_of


def test_a_search_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = state(CLOCK, visited(4, changes=[0.1, 0.2]), visited(3, skipped="it does not build"))
    place = place_of(tmp_path, kept.good, kept.bad, kept.asked)
    BISECTIONS.write(place, kept)

    assert BISECTIONS.read(place) == kept


def test_each_question_has_a_place_of_its_own(tmp_path: Path) -> None:
    asked = [("a", "b", ["t"]), ("a", "c", ["t"]), ("a", "b", ["t", "--world-size", "2"]), ("a", "b", ["t", "x"])]

    assert len({place_of(tmp_path, *each) for each in asked}) == 4
