"""The pytest plugin: hooks only. Loaded in every pytest run of its environment, so it imports little at the top."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.collect import ResultsPlugin
from pytest_distbench.plugin.rerun import BACKEND_ARGUMENT, test_and_id

if TYPE_CHECKING:
    from pytest_distbench.plugin.fixtures import Distbench
    from pytest_distbench.plugin.progress import Progress
    from pytest_distbench.plugin.shapes import CollectiveSweep, TimeToAccuracy
    from pytest_distbench.records.run import CaseResult
    from pytest_distbench.run.against import Reference
    from pytest_distbench.run.loop import Session
    from pytest_distbench.run.settings import Settings


@dataclass
class _State:
    """What the plugin keeps between hooks."""

    taken_options: list[str] = field(default_factory=list)
    """Short options that a conftest defined before us."""
    settings: Settings | None = None
    against: Reference | None = None
    session: Session | None = None
    progress: Progress | None = None
    usage_errors: list[str] = field(default_factory=list)
    results: ResultsPlugin | None = None


_STATE = pytest.StashKey[_State]()
_CASES = pytest.StashKey[dict[str, "CaseResult"]]()
_MADE = pytest.StashKey["Distbench"]()
_FIXTURE = "distbench"
_BENCHMARK_OPTIONS = tuple(
    f"benchmark_{option}"
    for option in (
        "only", "skip", "enable", "json", "save", "autosave", "save_data", "compare", "compare_fail", "histogram",
    )
)  # fmt: skip
"""Options of pytest-benchmark that ask for something; without any of them our results stay in our own table."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and ini keys."""
    from pytest_distbench.plugin import options

    options.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None]:
    """Add --world-size and --gpu after the conftests, which may have options of these names: theirs stay theirs."""
    from pytest_distbench.plugin import options

    yield
    early_config.stash[_STATE] = _State(taken_options=options.add_short_options(parser))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, begin to collect results, and check the options if any of ours was given."""
    from pytest_distbench.plugin.markers import DECLARATIONS

    for declaration in DECLARATIONS:
        config.addinivalue_line("markers", declaration)
    config.stash[_STATE].results = ResultsPlugin(config, lambda is_used: _settings_if_used(config, is_used=is_used))
    config.pluginmanager.register(config.stash[_STATE].results, "distbench-results")
    if any(config.getoption(name, None) for name in _BENCHMARK_OPTIONS):
        from pytest_distbench.plugin.pytest_benchmark import PytestBenchmarkPlugin

        config.pluginmanager.register(PytestBenchmarkPlugin(_FIXTURE), "distbench-pytest-benchmark")
    if _is_mentioned(config):
        _settings(config)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn the world sizes of a distbench test into ids: test[float32-ws2], test[float32-ws4]."""
    if _FIXTURE not in metafunc.fixturenames:
        return
    from pytest_distbench.errors import ConfigurationError
    from pytest_distbench.plugin import markers

    state = metafunc.config.stash[_STATE]
    definition = metafunc.definition
    try:
        markers.requirement(definition.iter_markers())
        sizes = markers.sizes(definition.iter_markers(), _settings(metafunc.config))
    except ConfigurationError as error:
        state.usage_errors.append(f"{definition.nodeid}: {error}")
        return
    own = any("world_size" in str(m.args[:1]) for m in definition.iter_markers("parametrize"))
    if not own:
        params = [
            pytest.param(s.ranks, id=f"ws{s.ranks}", marks=[pytest.mark.skip(reason=s.not_run)] if s.not_run else [])
            for s in sizes
        ]
        metafunc.parametrize("world_size", params)
    if len(backends := _settings(metafunc.config).backends) > 1:
        metafunc.parametrize(BACKEND_ARGUMENT, backends)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop before anything is measured if a test cannot be run as its markers say."""
    state = config.stash[_STATE]
    measuring = [item for item in items if _FIXTURE in getattr(item, "fixturenames", ())]
    if measuring and state.taken_options and config.getini("distbench_short_options"):
        options = " and ".join(state.taken_options)
        state.usage_errors.append(
            f"{options}: a conftest.py of this project already defines it, "
            "so pytest-distbench does not know whose it is. "
            "Put 'distbench_short_options = false' into the ini file to leave it to the conftest, and write "
            "--distbench-world-size and --distbench-gpu; or rename the conftest's option"
        )
    if state.usage_errors:
        raise pytest.UsageError("\n".join(dict.fromkeys(state.usage_errors)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count what will be compared, and let the launcher load torch while the first tests begin."""
    config = session.config
    running = [item for item in session.items if _is_measured(item)]
    if not running or config.option.collectonly:
        return
    from pytest_distbench.errors import DistbenchError

    try:
        _session(config).count_comparisons((*test_and_id(item), _backend_of(item)) for item in running)
    except DistbenchError as error:
        raise pytest.UsageError(str(error)) from None
    _session(config).launching.prepare()


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say what will be measured on what, unless -q was given or nothing is measured."""
    if config.get_verbosity() < 0 or not any(_FIXTURE in getattr(item, "fixturenames", ()) for item in items):
        return []
    from pytest_distbench.report.header import header_lines

    session, settings = _session(config), _settings(config)
    return header_lines(
        session.hardware,
        session.store,
        world_sizes=settings.world_sizes,
        num_gpus=len(settings.gpus),
        backend=", ".join(settings.backends),
        launcher=settings.launcher,
        update=f"{settings.update}, {settings.update_launches} launches a case" if settings.update else "",
        against=str(session.launching.compared_with or ""),
    )


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Ranks of the test's process groups; parametrized from the markers and --world-size."""
    return _settings(request.config).largest


@pytest.fixture
def distbench_backend(request: pytest.FixtureRequest) -> str:
    """Backend of the test's process groups; parametrized where --distbench-backend names several."""
    return _settings(request.config).backends[0]


@pytest.fixture
def distbench(request: pytest.FixtureRequest, world_size: int, distbench_backend: str) -> Iterator[Distbench]:
    """Run bodies in process groups, measure them and compare with the baseline. See the README."""
    from pytest_distbench.plugin.fixtures import Distbench
    from pytest_distbench.plugin.rerun import rerun_command

    config, node = request.config, request.node
    cases = node.stash[_CASES] = {}  # anew where a plugin runs the test again
    session = _session(config)
    progress = config.stash[_STATE].progress
    assert progress is not None
    progress.begin(node.name)

    def record(result: CaseResult) -> None:
        cases[str(result.case.key)] = result

    command = rerun_command(config, node.nodeid)
    made = node.stash[_MADE] = Distbench(
        session, node, world_size, distbench_backend, record, command, lambda: _terminal_for_rank(config)
    )
    yield made
    progress.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Make the launches of a test that it asked for and did not look at; their failure is the test's."""
    try:
        yield
    finally:
        made = item.stash.get(_MADE, None)
        if made is not None:
            made.note_measured()
    if made is not None:
        made.finish()


@pytest.fixture
def collective_sweep(request: pytest.FixtureRequest, distbench: Distbench) -> CollectiveSweep:
    """Measure one collective over message sizes: ``collective_sweep("all_reduce", dtype="float32")``."""
    from pytest_distbench.plugin.shapes import CollectiveSweep

    return CollectiveSweep(distbench, _settings(request.config).max_message_bytes)


@pytest.fixture
def time_to_accuracy(distbench: Distbench) -> TimeToAccuracy:
    """Train to a goal: ``time_to_accuracy(train, goal=0.97)``."""
    from pytest_distbench.plugin.shapes import TimeToAccuracy

    return TimeToAccuracy(distbench)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the measured cases to the test's report; JSON text, because pytest-xdist sends reports over a wire."""
    report = yield
    if _FIXTURE in getattr(item, "fixturenames", ()):
        carry.attach_test(report, *test_and_id(item))
    if call.when == "call" and (cases := item.stash.get(_CASES, None)):
        carry.attach_cases(report, _stored(item.config, report, list(cases.values())))
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """N for a test measured without a baseline, U for one whose baseline was written; both have passed."""
    if report.when != "call" or not report.passed or not carry.texts_of(report):
        return None
    return carry.status_of(carry.decode(carry.texts_of(report)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the launcher; nothing of ours outlives the run."""
    state = config.stash.get(_STATE, None)
    if state is not None and state.session is not None:
        state.session.launching.close()
        state.session = None


def _is_mentioned(config: pytest.Config) -> bool:
    """Whether an option of ours was given: then it is checked even if no test of ours is collected."""
    options = [value for name, value in vars(config.option).items() if name.startswith("distbench_")]
    return any(value not in (None, False) for value in options)


def _backend_of(item: pytest.Item) -> str:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get(BACKEND_ARGUMENT, _settings(item.config).backends[0]))


def _is_measured(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ()) and item.get_closest_marker("skip") is None


def _settings(config: pytest.Config) -> Settings:
    state = config.stash[_STATE]
    if state.settings is None:
        from pytest_distbench.errors import ConfigurationError
        from pytest_distbench.plugin.settings import read_settings

        try:
            settings = read_settings(config)
            if settings.against is not None:
                from pytest_distbench.run.against import find_reference

                state.against = find_reference(
                    settings.against, root=config.rootpath, folder=config.invocation_params.dir
                )
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from None
        state.settings = settings
    return state.settings


def _session(config: pytest.Config) -> Session:
    state = config.stash[_STATE]
    if state.session is None:
        from pytest_distbench.plugin.progress import Progress
        from pytest_distbench.run.launching import Launching
        from pytest_distbench.run.loop import Session

        settings = _settings(config)
        state.progress = Progress(config)
        launching = Launching(
            settings,
            on_progress=state.progress.show,
            reports_progress=state.progress.wants_events,
            on_output=state.progress.show_output if config.getoption("capture") == "no" else None,
            post_mortem=bool(config.getoption("usepdb")),
            compared_with=state.against,
        )
        state.session = Session(launching)
        if state.results is not None:
            state.results.session = state.session
        if settings.against is not None:
            _end_orderly_at_sigterm()
    return state.session


def _end_orderly_at_sigterm() -> None:
    """As at Ctrl-C: cancelled CI jobs get SIGTERM, and nobody else removes a worktree. A handler of others stays."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextlib.contextmanager
def _terminal_for_rank(config: pytest.Config) -> Iterator[None]:
    """Under --distbench-attach pytest lets go of stdin, stdout and stderr: the attached rank is given them."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if _settings(config).attach is None or capture is None:
        yield
        return
    capture.suspend(in_=True)
    try:
        yield
    finally:
        capture.resume()


def _stored(config: pytest.Config, report: pytest.TestReport, cases: list[CaseResult]) -> list[CaseResult]:
    """Write what an update measured if the test passed; else the cases without a claim that it was written."""
    from pytest_distbench.errors import StoredFileError
    from pytest_distbench.records.record import replaced

    session = _session(config)
    try:
        if report.passed:
            session.write_pending()
            return cases
    except StoredFileError as error:
        report.outcome = "failed"
        report.longrepr = f"the baseline was not written: {error}"
        cases = [replaced(case, outcome="failed", headline=report.longrepr) for case in cases]
    session.pending.clear()
    return [case if case.update == "refused" else replaced(case, update="") for case in cases]


def _settings_if_used(config: pytest.Config, *, is_used: bool) -> Settings | None:
    """The run's settings if anything of ours was asked for or measured, else None."""
    state = config.stash[_STATE]
    return _settings(config) if is_used or state.settings is not None else None
