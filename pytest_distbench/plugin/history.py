"""What tests took in earlier runs, kept in pytest's cache: it serves estimates alone, and may be lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_distbench.plugin.carry import PassedTest
    from pytest_distbench.records.run import CaseResult
    from pytest_distbench.run.settings import Settings
    from pytest_distbench.store.estimate import History, Took

_MOST_TESTS = 5000
"""Those that ran last: names of tests that were renamed leave in time."""


def name_in_history(nodeid: str, backend: str, launcher: str) -> str:
    """A test, by its full name, and what else decides how long it takes."""
    return f"{nodeid} {backend} {launcher}"


def read_history(config: pytest.Config) -> History:
    """What is known; nothing where the cache is off, or holds what we have not written: then the run's end tells it."""
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.store.estimate import History

    try:
        return _read(_path(config))
    except StoredFileError:
        return History()


def write_history(config: pytest.Config, settings: Settings, ran: Iterable[PassedTest]) -> str:
    """Add what the tests of this run took, those that passed: one that failed has made other launches.

    What of it is lost is returned in one line.
    """
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.records.record import replace
    from pytest_distbench.store.estimate import HISTORY_FILE, History

    if settings.attach is not None:
        return ""
    known, lost = History(), ""
    try:
        path = _path(config)
        if path is None:
            return ""
        try:
            known = _read(path)
        except StoredFileError as error:
            lost = f"what earlier runs took is lost, and written anew: {error}"
        tests, start_s = dict(known.tests), 0.0
        for test in ran:
            first = test.cases[0]
            name = name_in_history(first.nodeid, first.case.conditions.backend, settings.launcher)
            starts = [launch.phases.get("launcher", 0.0) for case in test.cases for launch in case.launches]
            start_s = max([start_s, *starts])
            tests[name] = _took(settings, tests.pop(name, None), test.cases, test.seconds - sum(starts))
        if lost or tests != known.tests:
            kept = dict(list(tests.items())[-_MOST_TESTS:])
            HISTORY_FILE.write(path, replace(known, start_s=start_s or known.start_s, tests=kept))
    except StoredFileError as error:
        return f"what the tests took is not kept: {error}"
    return lost


def _path(config: pytest.Config) -> Path | None:
    """The file in pytest's cache, whose folder is made; None where that is off."""
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.store.estimate import HISTORY_FILE

    cache = getattr(config, "cache", None)
    if cache is None:
        return None
    try:
        return Path(cache.mkdir("distbench")) / "took.json"
    except OSError as error:
        where = Path(error.filename or config.getini("cache_dir"))
        raise StoredFileError(where, f"cannot write: {error.strerror or error}", HISTORY_FILE.where) from error


def _read(path: Path | None) -> History:
    """What is there; nothing if there is no file yet."""
    from pytest_distbench.store.estimate import HISTORY_FILE, History

    return HISTORY_FILE.read(path) if path is not None and path.exists() else History()


def _took(settings: Settings, before: Took | None, cases: Sequence[CaseResult], seconds: float) -> Took:
    from pytest_distbench.judging.enough import FEWEST_EXACT
    from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
    from pytest_distbench.records.choices import ELASTIC_BASELINE_LAUNCHES
    from pytest_distbench.records.record import replace
    from pytest_distbench.run.pacing import SPACING_S, is_restless
    from pytest_distbench.store.estimate import KEPT_RUNS, Took, sort_of_run

    looks = settings.against.looks if settings.against is not None else ()
    launches = settings.update_launches if any(case.update for case in cases) else settings.launches
    sort = sort_of_run(launches, (looks[0], looks[-1]) if looks else None)
    runs = dict(before.runs) if before is not None else {}
    runs[sort] = [*runs.get(sort, []), round(max(seconds, 0.0), 2)][-KEPT_RUNS:]
    if looks and before is not None:
        return replace(before, runs=runs)  # a launch beside another one tells less than one alone
    once = more = 0.0
    fewest, scatters = FEWEST_EXACT, False
    for case in cases:
        last = case.launches[-1]
        wall_s = max(0.0, last.wall_s - last.phases.get("launcher", 0.0)) / (2 if looks else 1)
        once += wall_s
        more += max(wall_s, SPACING_S) if wall_s and is_restless(last) else wall_s
        if any(verdict.is_noisy for verdict in case.verdicts):
            is_elastic = bool(case.case.conditions.engine)
            fewest = max(fewest, ELASTIC_BASELINE_LAUNCHES if is_elastic else FEWEST_LAUNCHES)
            scatters = scatters or not is_elastic
    return Took(launch_s=round(once, 2), more_s=round(more, 2), fewest=fewest, scatters=scatters, runs=runs)
