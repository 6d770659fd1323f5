"""The hooks of the pytest plugin. Every pytest run of the environment loads this module, so it imports little."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_distbench import extensions
from pytest_distbench.plugin import carry, fixtures
from pytest_distbench.plugin.collect import ResultsPlugin
from pytest_distbench.plugin.fixtures import (
    MADE,
    STATE,
    State,
    backend_of,
    check_device_for_workers,
    is_mentioned,
    is_ours,
    launching_of,
    session_for,
    session_of,
    settings_for,
    settings_of,
    stays_on_cpu,
)
from pytest_distbench.plugin.names import BACKEND_ARGUMENT, CHOSEN_BY, RANKS, record_command, test_and_id

_ATTEMPTS = pytest.StashKey[int]()
_CONFIRM = "distbench-confirm"


def pytest_addoption(parser: pytest.Parser) -> None:
    from pytest_distbench.plugin.settings import add_options

    add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None]:
    """Add --world-size and --gpu after the conftests, which may define options of these names themselves.

    With --distbench-judge=base the process of the base replaces this one before a conftest is imported.
    """
    from pytest_distbench.plugin.settings import add_short_options

    if early_config.known_args_namespace.distbench_judge == "base":
        from pytest_distbench.run.judge import begin

        begin(early_config.invocation_params.args)
    yield
    early_config.stash[STATE] = State(taken_options=add_short_options(parser))


def pytest_configure(config: pytest.Config) -> None:
    """Declare markers and fixtures, register the collection of results, and check the options if one was given."""
    from pytest_distbench.plugin.settings import MARKERS

    for name, declaration in MARKERS.items():
        config.addinivalue_line("markers", f"{name}{declaration}")
        if name != "distbench":
            config.addinivalue_line("markers", f"distbench_{name}{declaration}")
    config.pluginmanager.register(ResultsPlugin(config), "distbench-results")
    config.pluginmanager.register(fixtures, "distbench-fixtures")
    added = [place for table in ("fixtures", "hooks") for _, place in extensions.places(table)]
    for module in dict.fromkeys(place.partition(":")[0] for place in added):
        config.pluginmanager.register(importlib.import_module(module), module)
    if is_mentioned(config):
        settings_of(config)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Check the GPUs before pytest-xdist starts its workers."""
    check_device_for_workers(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Parametrize a distbench test by its world sizes, behind its own ids: test[float32-ws2], test[float32-ws4]."""
    state = metafunc.config.stash[STATE]
    state.names_variables = is_ours(metafunc)
    yield
    if not state.names_variables:
        return
    from pytest_distbench.errors import ConfigurationError
    from pytest_distbench.plugin import markers

    definition = metafunc.definition
    try:
        sizes = markers.sizes(definition, settings_for(definition), metafunc.cls)
    except markers.UnfitClass:
        return  # the fixture world_size reports it, as these tests are set up
    except ConfigurationError as error:
        state.usage_errors.append(f"{_where(definition)}: {error}")
        return
    except pytest.UsageError as error:  # of the ini file, which is read here; each module would report it at length
        if hasattr(metafunc.config, "workerinput"):
            raise  # pytest-xdist does not show the usage errors of its workers
        state.usage_errors.append(str(error))
        return
    own = any("world_size" in str(m.args[:1]) for m in definition.iter_markers("parametrize"))
    if not own:
        params = [
            pytest.param(ranks, id=f"ws{ranks}", marks=[pytest.mark.skip(reason=not_run)] if not_run else [])
            for ranks, not_run in sizes.items()
        ]
        metafunc.parametrize("world_size", params)
    if len(backends := settings_for(definition).backends) > 1:
        metafunc.parametrize(BACKEND_ARGUMENT, backends)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Note all tests of a module, also those that were not asked for: their baselines are not unused."""
    made = yield
    for item in made if isinstance(made, list) else ():
        _note_collected(item)
    return made


def _note_collected(item: pytest.Item) -> None:
    if is_ours(item):
        test, case_id = test_and_id(item)
        item.config.stash[STATE].collected.setdefault(test, set()).add(case_id)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Write environment variables that a distbench test is parametrized by into its id: ``NCCL_ALGO=Ring``."""
    if argname != "env" or not config.stash[STATE].names_variables:
        return None
    from pytest_distbench.plugin.names import id_of_variables

    return id_of_variables(val)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Choose the world size of a test that cannot be parametrized: a method of a unittest.TestCase."""
    if not is_ours(item) or hasattr(item, "callspec"):
        return
    from pytest_distbench.errors import ConfigurationError
    from pytest_distbench.plugin.markers import UnfitClass, choose_ranks

    try:
        choose_ranks(item, settings_for(item))
    except UnfitClass:
        return
    except ConfigurationError as error:
        item.config.stash[STATE].usage_errors.append(f"{_where(item)}: {error}")
    _note_collected(item)


def _where(item: pytest.Item) -> str:
    file, line, _ = item.location
    return item.nodeid if line is None else f"{item.nodeid} ({Path(file).name}:{line + 1})"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop the run before it measures if the markers of a test are wrong; deselect slow tests."""
    state = config.stash[STATE]
    measuring = [item for item in items if is_ours(item)]
    if measuring and state.taken_options and config.getini("distbench_short_options"):
        options = " and ".join(state.taken_options)
        state.usage_errors.append(
            f"{options}: a conftest.py of this project already defines it, "
            "so both would claim it. Put 'distbench_short_options = false' into the ini file to leave it to the "
            "conftest, and use "
            "--distbench-world-size and --distbench-gpu; or rename the conftest's option"
        )
    if state.usage_errors:
        raise pytest.UsageError("\n".join(dict.fromkeys(state.usage_errors)))
    if measuring and not settings_of(config).full:
        from pytest_distbench.plugin.markers import own_markers

        is_slow = {  # here, where the marks of single parameters are known
            item: any(mark.name == "full" for mark in own_markers(item)) for item in filter(_is_measured, measuring)
        }
        if slow := [item for item in is_slow if is_slow[item]]:
            items[:] = [item for item in items if not is_slow.get(item)]
            config.hook.pytest_deselected(items=slow)
            state.slow += slow


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None]:
    """Let the launcher load torch, count the comparisons, and check that ranks can compute on a GPU.

    Torch is loaded while the terminal's hook, and this one, import what a session needs.
    """
    from pytest_distbench.errors import DistbenchError
    from pytest_distbench.plugin.settings import judged_by

    config = session.config
    running = [] if config.option.collectonly else [item for item in session.items if _is_measured(item)]
    parts = {on_cpu: [item for item in running if stays_on_cpu(item) is on_cpu] for on_cpu in (False, True)}
    try:
        for on_cpu in filter(parts.get, parts):
            launching_of(config, on_cpu=on_cpu).prepare()
    except DistbenchError as error:
        raise pytest.UsageError(str(error)) from None
    yield
    if (judged := judged_by(config)) is not None:
        try:
            judged.check_imports()
        except DistbenchError as error:
            raise pytest.UsageError(str(error)) from None
    if not running:
        return

    if session_of(config).confirmer is not None and not config.pluginmanager.hasplugin(_CONFIRM):
        from pytest_distbench.plugin.confirm import ConfirmPlugin

        config.pluginmanager.register(ConfirmPlugin(config, settings_of(config)), _CONFIRM)
    try:
        for on_cpu in filter(parts.get, parts):
            made = session_of(config, on_cpu=on_cpu)
            made.count_comparisons((*test_and_id(item), backend_of(item)) for item in parts[on_cpu])
            if not hasattr(config, "workerinput"):
                made.check_device()
    except DistbenchError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Report what will be measured on which hardware, and the expected duration; under -q that of an update alone."""
    if not any(is_ours(item) for item in [*items, *config.stash[STATE].slow]):
        return []
    from pytest_distbench.errors import DistbenchError
    from pytest_distbench.plugin.progress import header_lines

    settings = settings_of(config)
    if config.option.collectonly and config.get_verbosity() < 0 and settings.update is None:
        return []  # without the imports of a session
    session = session_of(config)
    try:
        hardware, store = session.hardware, session.store
    except DistbenchError as error:  # of hosts that do not say what they are
        raise pytest.UsageError(str(error)) from None
    takes = _duration(config, items)
    if config.get_verbosity() < 0:
        return [f"distbench: {takes}"] if settings.update and takes else []
    against = str(session.launching.compared_with or "") + ", which judges" * (settings.judge == "base")
    needs_baselines = any(CHOSEN_BY not in item.stash for item in items if is_ours(item))
    record = record_command(config) if needs_baselines else ""
    return header_lines(
        hardware,
        store,
        settings,
        against=against,
        duration=takes if needs_baselines or not items else "",
        record=record,
    )


def _duration(config: pytest.Config, items: list[pytest.Item]) -> str:
    from pytest_distbench.errors import DistbenchError
    from pytest_distbench.plugin.progress import duration_text

    settings, state = settings_of(config), config.stash[STATE]
    if settings.control is not None:
        return ""  # unknown: a case whose slowdown is not suspicious costs little
    try:
        tests, slow = ([_expected_s(item) for item in found] for found in (filter(_is_measured, items), state.slow))
    except DistbenchError:
        return ""  # a marker that cannot be used ends the run, and a baseline that cannot be read the test whose it is
    confirm_s = settings.confirm_budget_s if session_of(config).confirmer is not None else 0.0
    return duration_text(tests, slow=slow, confirm_s=confirm_s)


def _expected_s(item: pytest.Item) -> float | None:
    from pytest_distbench.judging.entry import only_judges
    from pytest_distbench.plugin.progress import expected_s

    settings, (test, case_id), under = settings_for(item), test_and_id(item), backend_of(item)
    found = session_for(item).store.of_test(test, test_ids=[case_id]).values()
    baselines = [b for b in found if (b.conditions.backend, b.conditions.launcher) == (under, settings.launcher)]
    launches: int | None = 2 * settings.pairs[0] if settings.is_paired else settings.first_launches
    if settings.update is not None and not only_judges(settings.update, next(iter(baselines), None)):
        launches = settings.update_launches
    return expected_s(baselines, launches)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Make the launches that a test asked for and did not use, and fail the test if one of them fails.

    Also fail a test that has caught a failure, whether it then passed or skipped.
    """
    try:
        yield
    except pytest.skip.Exception:
        if (skipped := item.stash.get(MADE, None)) is not None:
            skipped.raise_caught()
        raise
    finally:
        made = item.stash.get(MADE, None)
        if made is not None:
            made.note_measured()
    if made is not None:
        made.finish()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """End a launch shortly before pytest-timeout ends the test, to report what its ranks were doing and go on.

    Under --distbench-attach no timer is set.
    """
    if not item.config.stash[STATE].sessions or not is_ours(item):
        return None
    session = session_for(item)
    if session.settings.attach is not None:
        return True
    session.launching.test_ends_at = time.monotonic() + settings.timeout
    return None


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Forget the time limit of the test that ended."""
    for session in item.config.stash[STATE].sessions.values():
        session.launching.test_ends_at = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the measured cases to the test's report, as JSON text, because pytest-xdist serializes reports."""
    report = yield
    item.stash[_ATTEMPTS] = item.stash.get(_ATTEMPTS, 0) + (call.when == "setup")
    if report.skipped and call.excinfo is not None:
        carry.point_to_test(report, item, call.excinfo)
    if is_ours(item) or RANKS in item.stash:
        carry.attach_test(report, *test_and_id(item), f"{os.getpid()}-{item.stash[_ATTEMPTS]}")
    cases = item.stash.get(carry.CASES, {})
    if cases and (call.when != "setup" or not report.passed):  # what fixtures measured before the test is the test's
        from pytest_distbench.errors import StoredFileError
        from pytest_distbench.records.record import replace

        made, sessions = list(cases.values()), item.config.stash[STATE].sessions.values()
        if report.passed:
            try:
                for session in sessions:
                    session.write_pending()
            except StoredFileError as error:
                report.outcome = "failed"
                report.longrepr = f"the baseline was not written: {error}"
                made = [replace(case, outcome="failed", headline=report.longrepr) for case in made]
        if not report.passed:
            for session in sessions:
                session.pending.clear()
            made = [case if case.update == "refused" else replace(case, update="") for case in made]
        made = [replace(case, test_outcome=report.outcome) for case in made]
        carry.attach_cases(report, made)
        carry.attach_numbers(item, report, made)
        cases.clear()
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Return the letter of a distbench test that passed, or that is run again at the end."""
    if carry.is_suspicious(report):
        return "", "?", "SUSPICIOUS"
    if report.when != "call" or not report.passed or not carry.texts_of(report):
        return None
    return carry.status_of(carry.decode(carry.texts_of(report)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Close the launchers, even if hooks of other plugins raise.

    The hook of pytest-xdist does in a worker whose controller was killed.
    """
    state = session.config.stash[STATE]
    try:
        yield
    finally:
        if state.interrupts is not None:
            from pytest_distbench.errors import ExtensionError

            try:
                with state.interrupts.ignored(), contextlib.ExitStack() as last:
                    for launching in state.launchings.values():
                        last.callback(launching.close)
            except ExtensionError as error:
                raise pytest.UsageError(str(error)) from None
            finally:
                state.interrupts.forget()
                state.sessions.clear()
                state.launchings.clear()


def _is_measured(item: pytest.Item) -> bool:
    skipped = any(
        mark.name == "skip"
        or (mark.name == "skipif" and any(why is True for why in (*mark.args, *mark.kwargs.values())))
        for mark in item.iter_markers()
    )
    return is_ours(item) and not skipped
