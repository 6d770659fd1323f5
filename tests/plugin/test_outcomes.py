"""Failures as pytest shows them."""

from __future__ import annotations

import pytest
from support.projects import TEST, Project, run


def test_control_characters_in_what_a_rank_says_do_not_reach_the_terminal(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST.replace('"step":', r'"step[at=\x1b2J]":'))
    named = run(made).stdout.str()
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "red \x1b[31m alarm \x07 \u202e")
    failed = run(made).stdout.str()

    assert "step[at=\\x1b2J]" in named
    assert "red \\x1b[31m alarm \\x07 \\u202e" in failed
    assert not {"\x1b", "\x07", "\u202e"} & set(named + failed)
