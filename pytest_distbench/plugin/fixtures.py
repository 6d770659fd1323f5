"""The state of the plugin in a pytest run, and the fixtures of the core.

Their modules are imported when a test uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.names import BACKEND_ARGUMENT, RANKS

if TYPE_CHECKING:
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.plugin.progress import Interrupts, ProgressLine
    from pytest_distbench.run.against import Variant
    from pytest_distbench.run.launching import Launching
    from pytest_distbench.run.request import Settings
    from pytest_distbench.run.session import Session


class State:
    """The state of the plugin between hooks.

    Attributes:
        taken_options: options that a conftest has defined before this plugin.
        not_used: files of a change that its base judges, and that are not used.
        launchings: whether tests stay on the CPU under ``--gpu``, which is another platform -> how they are launched.
        sessions: the same -> their session.
        names_variables: whether the parameters of a distbench test are given ids at the moment.
        interrupts: handlers of Ctrl-C and SIGTERM, or None before the first session.
        collected: name of a test -> all its ids.
        slow: tests that are marked ``full``, and deselected without --distbench-full.
    """

    def __init__(self, taken_options: list[str]) -> None:
        self.taken_options = taken_options
        self.settings: Settings | None = None
        self.against: Variant | None = None
        self.not_used: list[str] = []
        self.launchings: dict[bool, Launching] = {}
        self.sessions: dict[bool, Session] = {}
        self.progress: ProgressLine | None = None
        self.usage_errors: list[str] = []
        self.names_variables = False
        self.interrupts: Interrupts | None = None
        self.collected: dict[str, set[str]] = {}
        self.slow: list[pytest.Item] = []


STATE = pytest.StashKey[State]()


def is_mentioned(config: pytest.Config) -> bool:
    """Whether an option of this plugin was given, which is checked even if no distbench test is collected."""
    options = [value for name, value in vars(config.option).items() if name.startswith("distbench_")]
    overrides = config.getoption("override_ini") or ()
    return any(value not in (None, False) for value in options) or any(o.startswith("distbench_") for o in overrides)


def settings_of(config: pytest.Config) -> Settings:
    """The settings of the run, read and checked at the first call; a wrong one is a usage error."""
    state = config.stash[STATE]
    if state.settings is None:
        from pytest_distbench.errors import DistbenchError
        from pytest_distbench.plugin.settings import judged_by, read_settings

        try:
            settings = read_settings(config)
            if settings.is_paired:
                from pytest_distbench.run.against import find_variant

                judged, folder = judged_by(config), config.invocation_params.dir
                state.against = find_variant(settings, root=config.rootpath, folder=folder, judged=judged)
                if judged is not None and not hasattr(config, "workerinput"):
                    state.not_used = judged.take_over(config.getini("python_files"), config.args)
        except DistbenchError as error:
            raise pytest.UsageError(str(error)) from None
        state.settings = settings
    return state.settings


def stays_on_cpu(node: pytest.Item | pytest.Function) -> bool:
    """Whether a test stays on the CPU in a run on GPUs."""
    if not settings_of(node.config).gpu:
        return False
    from pytest_distbench.plugin.markers import own_markers

    return any(mark.name == "cpu" for mark in own_markers(node))


def settings_for(node: pytest.Item | pytest.Function) -> Settings:
    """The settings of the run for a test."""
    settings = settings_of(node.config)
    return settings.on_cpu() if stays_on_cpu(node) else settings


def session_for(node: pytest.Item) -> Session:
    """The session of a test: see :class:`State`."""
    return session_of(node.config, on_cpu=stays_on_cpu(node))


def session_of(config: pytest.Config, *, on_cpu: bool = False) -> Session:
    """The session of this process, made at the first call, which comes after a distbench test was collected."""
    sessions = config.stash[STATE].sessions
    if on_cpu not in sessions:
        sessions[on_cpu] = _make_session(config, launching_of(config, on_cpu=on_cpu))
    return sessions[on_cpu]


def launching_of(config: pytest.Config, *, on_cpu: bool = False) -> Launching:
    """The launching of a session, which loads torch meanwhile if it is prepared before the session is made."""
    launchings, settings = config.stash[STATE].launchings, settings_of(config)
    if on_cpu not in launchings:
        launchings[on_cpu] = _make_launching(config, settings.on_cpu() if on_cpu else settings)
    return launchings[on_cpu]


def _make_launching(config: pytest.Config, settings: Settings) -> Launching:
    from pytest_distbench.plugin.progress import Interrupts, ProgressLine
    from pytest_distbench.run.launching import Launching

    state = config.stash[STATE]
    state.progress = state.progress or ProgressLine(config)
    state.interrupts = state.interrupts or Interrupts()
    return Launching(
        settings,
        on_start=state.interrupts.listen,
        on_progress=state.progress.show,
        on_wait=state.progress.announce,
        on_loaded=state.progress.loaded,
        reports_progress=state.progress.wants_events,
        on_output=state.progress.show_output if config.getoption("capture") == "no" else None,
        post_mortem=bool(config.getoption("usepdb")),
        compared_with=state.against,
        root=config.rootpath,
    )


def _make_session(config: pytest.Config, launching: Launching) -> Session:
    from pytest_distbench.run.confirm import Confirmer
    from pytest_distbench.run.session import Session

    settings = launching.settings
    is_compared = not settings.is_paired and settings.attach is None and settings.fake_rank is None
    is_confirmed = is_compared and settings.update is None and settings.confirm[0] != "off"
    confirmer = Confirmer(settings, config.rootpath, config.invocation_params.dir) if is_confirmed else None
    return Session(launching, confirmer)


def check_device_for_workers(config: pytest.Config) -> None:
    """Check that ranks can compute on a GPU before pytest-xdist starts workers, if the run is on GPUs.

    pytest-xdist takes a worker that raises a usage error for one that has crashed.
    """
    if not getattr(config.option, "numprocesses", None) or not is_mentioned(config) or not settings_of(config).gpu:
        return
    from pytest_distbench.errors import DistbenchError

    session = _make_session(config, _make_launching(config, settings_of(config)))
    try:
        session.check_device()
    except DistbenchError as error:
        raise pytest.UsageError(str(error)) from None
    finally:
        session.launching.close()
        if (interrupts := config.stash[STATE].interrupts) is not None:
            interrupts.forget()


def backend_of(item: pytest.Item) -> str:
    """The backend of a test's process groups."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get(BACKEND_ARGUMENT, settings_for(item).backends[0]))


FIXTURE = "distbench"


def is_ours(item: pytest.Item | pytest.Metafunc) -> bool:
    """Whether a test uses the fixture ``distbench``, directly or by another fixture."""
    return FIXTURE in getattr(item, "fixturenames", ())


MADE = pytest.StashKey["Distbench"]()  # the fixture of a test


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Ranks of the test's process groups; parametrized from the markers and --world-size."""
    if FIXTURE in request.fixturenames and RANKS not in request.node.stash:
        from pytest_distbench.plugin.markers import UnfitClass, sizes_of_class
        from pytest_distbench.plugin.outcomes import Misuse

        try:
            sizes_of_class(request.cls)
        except UnfitClass as error:
            raise Misuse(str(error)) from None
    ranks: int = request.node.stash.get(RANKS, settings_of(request.config).largest)
    return ranks


@pytest.fixture
def distbench_backend(request: pytest.FixtureRequest) -> str:
    """Backend of the test's process groups; parametrized where --distbench-backend names several."""
    return settings_for(request.node).backends[0]


@pytest.fixture
def distbench(request: pytest.FixtureRequest, world_size: int, distbench_backend: str) -> Iterator[Distbench]:
    """Run bodies in process groups, measure them and compare with the baseline. See the README."""
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.plugin.markers import warn_of_left_out

    config, node = request.config, request.node
    node.stash[carry.CASES] = {}  # empty again if a plugin runs the test again
    carry.forget_numbers(node)
    if "world_size" not in getattr(getattr(node, "callspec", None), "params", {}):
        node.stash[RANKS] = world_size  # of one that asks for the fixture by request.getfixturevalue too
    warn_of_left_out(node)
    session = session_for(node)
    progress = config.stash[STATE].progress
    assert progress is not None
    progress.begin(node.name)

    node.stash[MADE] = Distbench(session, node, world_size, distbench_backend)
    yield node.stash[MADE]
    progress.end()
    session.launching.end_test()
