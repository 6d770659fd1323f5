"""What the plugin keeps of a pytest run between its hooks, and whether the run saw every test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.plugin.names import why_partial


def why(
    *,
    args: tuple[str, ...] = ("suites",),
    options: Any = None,
    deselected: int = 0,
    unreported: int = 0,
    **session: Any,
) -> str:
    config = SimpleNamespace(getoption=lambda name, default=None: (options or {}).get(name, default), args=args)
    ended = {"exitstatus": pytest.ExitCode.OK, "testsfailed": 0, "shouldstop": False, "shouldfail": False} | session
    told: Any = SimpleNamespace(**ended)
    return why_partial(config, told, deselected=deselected, unreported=unreported)


def test_a_whole_green_run_can_tell() -> None:
    assert why() == ""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"options": {"keyword": "a"}}, "-k was given"),
        ({"options": {"lf": True}}, "--last-failed was given"),
        ({"args": ("a.py::test_a",)}, "single tests were named"),
        ({"unreported": 2}, "2 collected tests were not reported"),
        ({"deselected": 3}, "3 tests were deselected"),
        ({"exitstatus": pytest.ExitCode.TESTS_FAILED, "testsfailed": 2}, "2 tests failed"),
        ({"exitstatus": pytest.ExitCode.INTERRUPTED}, "the run did not end well"),
        ({"shouldstop": "enough"}, "the run was stopped early"),
    ],
)
def test_what_keeps_a_run_from_telling_is_named(given: dict[str, Any], reason: str) -> None:
    assert why(**given) == reason
