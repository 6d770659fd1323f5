"""What the plugin keeps of a pytest run between its hooks, and the fixtures that tests get of it.

What they hand out is imported when one asks for it.
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
    from pytest_distbench.run.request import Settings
    from pytest_distbench.run.session import Session


class State:
    """What the plugin keeps between hooks.

    A conftest has defined the taken options before us. Tests that stay on the CPU under ``--gpu`` have a session of
    their own, by True: another class of hardware, so another store. Of the tests that were collected there are all ids;
    those marked ``full`` are slow, and deselected without --distbench-full. There are interrupts, the handlers of
    Ctrl-C and SIGTERM, once this process has a session. While the parameters of a test of ours are named, so are
    variables among them. Where the base judges there are files of the change that are not used.
    """

    def __init__(self, taken_options: list[str]) -> None:
        self.taken_options = taken_options
        self.settings: Settings | None = None
        self.against: Variant | None = None
        self.not_used: list[str] = []
        self.sessions: dict[bool, Session] = {}
        self.progress: ProgressLine | None = None
        self.usage_errors: list[str] = []
        self.names_variables = False
        self.interrupts: Interrupts | None = None
        self.collected: dict[str, set[str]] = {}
        self.slow: list[pytest.Item] = []


STATE = pytest.StashKey[State]()


def is_mentioned(config: pytest.Config) -> bool:
    """Whether an option of ours was given: then it is checked even if no test of ours is collected."""
    options = [value for name, value in vars(config.option).items() if name.startswith("distbench_")]
    overrides = config.getoption("override_ini") or ()
    return any(value not in (None, False) for value in options) or any(o.startswith("distbench_") for o in overrides)


def settings_of(config: pytest.Config) -> Settings:
    """What the user asked for, read and checked at the first call; what cannot be used is a usage error."""
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
    """Whether the run is on GPUs and this test is not."""
    if not settings_of(node.config).gpu:
        return False
    from pytest_distbench.plugin.markers import own_markers

    return any(mark.name == "cpu" for mark in own_markers(node))


def settings_for(node: pytest.Item | pytest.Function) -> Settings:
    """The settings of the run, as they are for this test."""
    settings = settings_of(node.config)
    return settings.on_cpu() if stays_on_cpu(node) else settings


def session_for(node: pytest.Item) -> Session:
    """The session that a test belongs to: see :class:`State`."""
    return session_of(node.config, on_cpu=stays_on_cpu(node))


def session_of(config: pytest.Config, *, on_cpu: bool = False) -> Session:
    """The session of this process, made at the first call: nothing is started before a test of ours is collected."""
    sessions, settings = config.stash[STATE].sessions, settings_of(config)
    if on_cpu not in sessions:
        sessions[on_cpu] = _make_session(config, settings.on_cpu() if on_cpu else settings)
    return sessions[on_cpu]


def _make_session(config: pytest.Config, settings: Settings) -> Session:
    """A session; with a confirmer if stored baselines are compared, and suspicious cases confirmed."""
    from pytest_distbench.plugin.progress import Interrupts, ProgressLine
    from pytest_distbench.run.confirm import Confirmer
    from pytest_distbench.run.launching import Launching
    from pytest_distbench.run.session import Session

    state = config.stash[STATE]
    state.progress = state.progress or ProgressLine(config)
    state.interrupts = state.interrupts or Interrupts()
    launching = Launching(
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
    is_compared = not settings.is_paired and settings.attach is None and settings.fake_rank is None
    is_confirmed = is_compared and settings.update is None and settings.confirm[0] != "off"
    confirmer = Confirmer(settings, config.rootpath, config.invocation_params.dir) if is_confirmed else None
    return Session(launching, confirmer, root=config.rootpath)


def check_device_for_workers(config: pytest.Config) -> None:
    """Make sure, before pytest-xdist starts its workers, that ranks can compute on a GPU where the run is to.

    A worker that told it would be taken for one that has crashed.
    """
    if not getattr(config.option, "numprocesses", None) or not is_mentioned(config) or not settings_of(config).gpu:
        return
    from pytest_distbench.errors import DistbenchError

    session = _make_session(config, settings_of(config))
    try:
        session.check_device()
    except DistbenchError as error:
        raise pytest.UsageError(str(error)) from None
    finally:
        session.launching.close()
        if (interrupts := config.stash[STATE].interrupts) is not None:
            interrupts.forget()


def backend_of(item: pytest.Item) -> str:
    """Backend of a test's process groups."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get(BACKEND_ARGUMENT, settings_for(item).backends[0]))


FIXTURE = "distbench"


def is_ours(item: pytest.Item | pytest.Metafunc) -> bool:
    """Whether a test asks for the fixture, or for one that does."""
    return FIXTURE in getattr(item, "fixturenames", ())


MADE = pytest.StashKey["Distbench"]()  # what a test has measured, and with what


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
    node.stash[carry.CASES] = {}  # anew where a plugin runs the test again
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
