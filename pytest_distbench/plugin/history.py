"""What tests took in earlier runs, kept in pytest's cache: it serves estimates alone, and may be lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_distbench.plugin.carry import PassedTest
    from pytest_distbench.records.run import CaseResult
    from pytest_distbench.run.settings import Settings
    from pytest_distbench.store.estimate import History, Took

_KEY = "distbench/took"
_MOST_TESTS = 5000
"""Those that ran last: names of tests that were renamed leave in time."""


def name_in_history(nodeid: str, backend: str, launcher: str) -> str:
    """A test, by its full name, and what else decides how long it takes."""
    return f"{nodeid} {backend} {launcher}"


def read_history(config: pytest.Config) -> History:
    """What is known; nothing where the cache is off, or holds what we have not written."""
    import msgspec

    from pytest_distbench.store.estimate import History

    cache = getattr(config, "cache", None)
    try:
        return msgspec.convert(cache.get(_KEY, {}) if cache is not None else {}, History)
    except msgspec.ValidationError:
        return History()


def write_history(config: pytest.Config, settings: Settings, ran: Iterable[PassedTest]) -> None:
    """Add what the tests of this run took, those that passed: one that failed has made other launches."""
    import msgspec

    from pytest_distbench.records.record import replace

    cache = getattr(config, "cache", None)
    if cache is None or settings.against is not None or settings.attach is not None:
        return
    known = read_history(config)
    tests, start_s = dict(known.tests), 0.0
    for test in ran:
        first = test.cases[0]
        name = name_in_history(first.nodeid, first.case.conditions.backend, settings.launcher)
        starts = [launch.phases.get("launcher", 0.0) for case in test.cases for launch in case.launches]
        start_s = max([start_s, *starts])
        launches = _launches(settings, test.cases)
        tests[name] = _took(tests.pop(name, None), test.cases, test.seconds - sum(starts), launches)
    if tests == known.tests:
        return
    kept = dict(list(tests.items())[-_MOST_TESTS:])
    cache.set(_KEY, msgspec.to_builtins(replace(known, start_s=start_s or known.start_s, tests=kept)))


def _launches(settings: Settings, cases: Sequence[CaseResult]) -> int | None:
    """How many launches of each case were asked for; None: as many as an update needs."""
    return settings.update_launches if any(case.update for case in cases) else settings.launches


def _took(before: Took | None, cases: Sequence[CaseResult], seconds: float, launches: int | None) -> Took:
    from pytest_distbench.judging.enough import FEWEST_EXACT
    from pytest_distbench.records.choices import ELASTIC_BASELINE_LAUNCHES
    from pytest_distbench.run.pacing import SPACING_S, is_restless
    from pytest_distbench.store.estimate import KEPT_RUNS, USUAL_LAUNCHES, Took, sort_of_run

    once = more = 0.0
    fewest = FEWEST_EXACT
    for case in cases:
        last = case.launches[-1]
        wall_s = max(0.0, last.wall_s - last.phases.get("launcher", 0.0))
        once += wall_s
        more += max(wall_s, SPACING_S) if wall_s and is_restless(last) else wall_s
        usual = ELASTIC_BASELINE_LAUNCHES if case.case.conditions.engine else USUAL_LAUNCHES
        fewest = max(fewest, usual if any(verdict.is_noisy for verdict in case.verdicts) else FEWEST_EXACT)
    runs = dict(before.runs) if before is not None else {}
    sort = sort_of_run(launches)
    runs[sort] = [*runs.get(sort, []), round(max(seconds, 0.0), 2)][-KEPT_RUNS:]
    return Took(launch_s=round(once, 2), more_s=round(more, 2), fewest=fewest, runs=runs)
