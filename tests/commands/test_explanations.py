"""distbench explain: what words mean that a run printed."""

from __future__ import annotations

import pytest

from pytest_distbench.commands.cli import main
from pytest_distbench.records.kinds import VERDICT_KINDS


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_word_is_explained_with_what_to_do_and_where_more_is(capsys: pytest.CaptureFixture[str]) -> None:
    name, means, next_step, page = told(capsys, "regressed")

    assert name == "regressed (verdict)"
    assert means == f"  {VERDICT_KINDS['regressed'].means}"
    assert next_step.startswith("  next: ")
    assert page == "  docs/verdicts.md#verdicts"


def test_of_a_line_every_word_that_is_known_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "rank 1 killed by SIGKILL", "2 no longer measured")

    assert [line for line in lines if line.endswith(")")] == ["lost (verdict)", "rank N killed by ... (failure)"]


def test_without_words_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys)

    assert {"verdicts", "metrics", "failures", "  regressed", "  busbw", "  deadlock: ..."} <= set(lines)


def test_of_an_unknown_word_those_like_it_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "peak_memroy"]) == 2
    assert "nothing is known of 'peak_memroy'; did you mean 'peak_memory'?" in capsys.readouterr().err
