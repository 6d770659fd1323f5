"""A failed launch as text: equal fates once, and how to run it again."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import result

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.rank import ErrorReport, RankFate
from pytest_distbench.records.record import replace
from pytest_distbench.report.texts.launch_text import launch_headline, launch_text, remark_lines


def fate(rank: int, **changes: Any) -> RankFate:
    made: dict[str, Any] = {"outcome": "failed", "phase": "body", "how": "raised ValueError"}
    return RankFate(rank=rank, **(made | changes))


def launch(*fates: RankFate, **changes: Any) -> LaunchRecord:
    return LaunchRecord(index=1, outcome="failed", wall_s=1.0, fates=list(fates), logs="/tmp/run", **changes)


def text(*fates: RankFate, **changes: Any) -> list[str]:
    made = result(launches=[launch(*fates, **changes)])
    return launch_text(made, rerun_command="pytest x").splitlines()


def test_the_headline_counts_from_one_and_has_the_first_line_of_the_reason() -> None:
    assert launch_headline(launch(fate(0), fate(1), reason="hung\nand more")) == "launch 2 on 2 ranks: hung"
    assert launch_headline(launch(fate(0))) == "launch 2 on 1 rank: failed"


def test_equal_fates_are_told_once_with_their_ranks() -> None:
    error = ErrorReport(kind="ValueError", message="bad", traceback="Traceback: bad", raised_at=0.0)
    lines = text(fate(2, error=error), fate(0, error=error), fate(1, how="exit code 3", is_victim=True))

    assert "--- ranks 0, 2: raised ValueError, in phase body" in lines
    assert "--- rank 1: exit code 3, in phase body; followed from another rank's failure" in lines
    assert lines.count("Traceback: bad") == 1


def test_ranks_of_several_hosts_are_named_with_theirs() -> None:
    lines = text(fate(2), fate(0), fate(1, how="exit code 3"), hosts=["a", "a", "b"])

    assert "--- ranks 0 (a), 2 (b): raised ValueError, in phase body" in lines
    assert "--- rank 1 (a): exit code 3, in phase body" in lines


@pytest.mark.parametrize(("launcher", "is_told"), [("warm", True), ("slurm", False), ("cmd", False), ("mine", True)])
def test_a_debugger_is_offered_where_there_is_a_terminal(launcher: str, is_told: bool) -> None:
    made = result(launches=[launch(fate(0))])
    conditions = replace(made.case.conditions, launcher=launcher)
    lines = launch_text(replace(made, case=replace(made.case, conditions=conditions)), rerun_command="pytest x")

    assert ("--distbench-attach 0" in lines) == is_told


def test_a_rank_that_hung_shows_where() -> None:
    lines = text(fate(0, how="hung", stacks="line 1\nline 2", waits_at="a.py:7 in b"))

    assert "--- rank 0: hung, in phase body; at a.py:7 in b" in lines
    assert lines[lines.index("    line 1") + 1] == "    line 2"


def test_the_end_of_a_log_and_the_commands_stand_last() -> None:
    lines = text(fate(3, log_tail="said\n"), reason="died\nthe launcher's own words")

    assert "    | said" in lines
    assert "    | the launcher's own words" in lines
    assert lines[-2:] == ["re-run:  pytest x", "debug:   pytest x --distbench-attach 3"]


def test_what_gpus_and_launcher_have_to_say_stands_below_the_headline() -> None:
    lines = text(
        fate(0),
        reason="died",
        remarks=["GPU 1 holds 3 GiB more than before"],
    )

    assert lines[1] == "GPU 1 holds 3 GiB more than before"


def test_what_launches_that_passed_have_to_say_is_said_once() -> None:
    launches = [launch(remarks=["rank 0: a", "rank 0: a"]), launch(remarks=["rank 0: a", "rank 1: b"]), launch()]

    assert remark_lines(launches) == ["rank 0: a (2 of 3 launches)", "rank 1: b (1 of 3 launches)"]
