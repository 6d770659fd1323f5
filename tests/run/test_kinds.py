"""The table of kinds of launch: complete, and all that is compared is run on both sides."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.plans import BODY, make_plan

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.starters import LAUNCHERS, Hosting
from pytest_distbench.launch.supervise import Side
from pytest_distbench.records.launch import LaunchRecord, Outcome
from pytest_distbench.records.plan import Command, LaunchPlan, Ranks, Work
from pytest_distbench.run.kinds import HERE, LAUNCH_KINDS, kind_of, one_after_the_other

RANKS = Ranks(body=BODY)
COMMAND = Command(words=["true"])


@pytest.mark.parametrize(("work", "carried"), [(RANKS, "mine"), (COMMAND, "command")])
def test_each_kind_says_under_which_launcher_its_baselines_are_stored(work: Work, carried: str) -> None:
    assert kind_of(work).launcher(work, "mine") == carried


def test_rows_of_kinds_say_what_runs_where() -> None:
    elsewhere = Hosting(hosts="many", is_spaced=False, sets_threads=True)
    hosted = {kind: row.hosted_by(elsewhere) for kind, row in LAUNCH_KINDS.items()}
    assert hosted[Ranks] is elsewhere
    assert (hosted[Command].hosts, hosted[Command].sets_threads) == ("one", False)
    assert isinstance(LAUNCHERS["warm"], Hosting)

    class Nap(Work, frozen=True, kw_only=True):
        pass

    with pytest.raises(ConfigurationError, match="has no row for Nap; it has rows for Ranks, Command"):
        kind_of(Nap())

    assert Hosting() == HERE


def test_ranks_of_a_side_without_a_launcher_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="needs a launcher, and its side has none"):
        kind_of(RANKS).run(make_plan(tmp_path), Side())


@pytest.mark.parametrize(("outcome", "runs"), [("passed", {"first", "second"}), ("failed", None)])
def test_the_second_of_two_that_take_no_turns_runs_only_where_the_first_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, runs: set[str] | None
) -> None:
    ran: list[str] = []

    def run(plan: LaunchPlan, side: Side) -> LaunchRecord:
        ran.append(plan.title)
        return LaunchRecord(index=0, outcome=outcome, wall_s=1.0, reason=plan.title)

    monkeypatch.setitem(LAUNCH_KINDS, Command, dataclasses.replace(LAUNCH_KINDS[Command], run=run))
    arms = [(make_plan(tmp_path, work=COMMAND, title=title), Side()) for title in ("first", "second")]
    first, second = one_after_the_other(arms)

    if runs is None:
        assert len(ran) == 1
        assert (first is None) is not (second is None)
    else:
        assert set(ran) == runs
        assert (first and first.reason, second and second.reason) == ("first", "second")
