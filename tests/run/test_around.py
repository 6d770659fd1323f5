"""What happens around launches: each row once, the first outermost, and the record in the end has all of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.plans import make_plan

from pytest_distbench.errors import ExtensionError
from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.run.around import AROUND, AroundSetup, Surroundings
from pytest_distbench.run.kinds import HERE

PASSED = LaunchRecord(index=0, outcome="passed", wall_s=1.0)


class Noted:
    """Notes when it is entered, left, and asked to describe."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Noted]:
        self.events.append(f"enter {self.name}")
        yield self
        self.events.append(f"leave {self.name}")

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        return replace(record, remarks=[*record.remarks, self.name])

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        return {self.name: request.backend}

    def close(self) -> None:
        self.events.append(f"close {self.name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    for name in ("outer", "inner"):
        monkeypatch.setitem(AROUND, name, lambda setup, name=name: Noted(name, found))
    monkeypatch.delitem(AROUND, "gpus")
    return found


@pytest.fixture
def surroundings(events: list[str]) -> Surroundings:
    nothing: Any = SimpleNamespace(launcher="warm", engine=None)
    return Surroundings(AroundSetup(settings=nothing, on_progress=print))


def test_rows_are_nested_and_each_describes_the_record_when_all_is_over(
    surroundings: Surroundings, events: list[str], tmp_path: Path
) -> None:
    with surroundings.during(make_plan(tmp_path), HERE) as describe:
        events.append("launch")

    assert events == ["enter outer", "enter inner", "launch", "leave inner", "leave outer"]
    assert [describe(PASSED).remarks for _ in range(2)] == [["inner", "outer"]] * 2  # of a pair both


def test_conditions_of_all_rows_are_those_of_the_case(surroundings: Surroundings, tmp_path: Path) -> None:
    assert surroundings.conditions(make_plan(tmp_path)) == {"outer": "gloo", "inner": "gloo"}


def test_all_rows_are_closed_also_where_one_fails_at_it(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Noted):
        def close(self) -> None:
            raise OSError("it is stuck")

    monkeypatch.setitem(AROUND, "innermost", lambda setup: Stuck("innermost", events))
    nothing: Any = SimpleNamespace(launcher="warm", engine=None)

    with pytest.raises(ExtensionError, match=r"AROUND\['innermost'\]: OSError: it is stuck"):
        Surroundings(AroundSetup(settings=nothing, on_progress=print)).close()

    assert events == ["close inner", "close outer"]
