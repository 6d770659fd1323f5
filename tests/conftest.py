"""Shared fixtures: no process may be left behind, and a plugin run without torch."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import changes
import durations
import hypothesis
import pytest
from support.costs import pytest_runtest_makereport, pytest_runtest_protocol
from support.doors import is_open, watched
from support.engine import ENGINE
from support.launching import Launch, Lent, MadeLauncher, RunInside
from support.nvml import Host, h100s, simulated
from support.processes import EXIT_S, LIMIT_S, MARK, marked_processes
from support.projects import ALONE, ModulesOfProject

from pytest_distbench.judging import case
from pytest_distbench.judging.deciders import RULES
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import LAUNCHERS, Launcher, LauncherSetup
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.reasons import REASONS
from pytest_distbench.records.wire import SESSION_VARIABLE
from pytest_distbench.run.kinds import AROUND, LAUNCH_KINDS
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import Pacer

gc.disable()  # until all tests are collected, and all that they import is loaded: see pytest_collection_finish

__all__ = ["pytest_runtest_makereport", "pytest_runtest_protocol"]  # hooks that pytest finds here

hypothesis.settings.register_profile("repository", deadline=None, derandomize=True)  # no clock, no surprise in CI
hypothesis.settings.load_profile("repository")

ROOT = Path(__file__).parents[1]
UNCHANGED = pytest.StashKey[dict[str, str]]()
"""Why conditional tests are left out, by the beginning of the names of their files."""
SHARED = {"launcher", "launchers", "made_launcher", "cuda_launcher", "run_inside"}
"""Fixtures that cost seconds: a second worker would make them again."""
SPLIT_S = 40.0
"""Files whose tests take longer in all are shared by the workers, though each makes a launcher of its own then."""


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks and run directories of this process's tests; another worker's measurements are no reason to wait."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def modules_stay() -> Iterator[None]:
    """What runs of pytest inside this process load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("_pytest.pytester.SysModulesSnapshot", ModulesOfProject)
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """What tests start hears SIGINT, which a shell has its background jobs ignore, and with them their children."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)  # Python's handlers, as opposed to SIG_IGN, end with an exec
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def launches_follow_at_once() -> Iterator[None]:
    """Launches of pytest runs inside this process start without a pause: they learn less about the machine's noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "pacer", Pacer(0.0))
        yield


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of GitHub output and of exit codes must not see the machine they run on, nor that they run side by side."""
    for name in (
        "GITHUB_ACTIONS",
        "GITHUB_STEP_SUMMARY",
        "PYTEST_ADDOPTS",
        "CI",
        "CUDA_VISIBLE_DEVICES",
        "PYTEST_XDIST_WORKER",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After a test that starts process groups, none of their processes is alive."""
    if request.node.get_closest_marker("spawn") is None or _shares_launcher(request.node):
        yield  # a launcher outlives a test: such a test looks for its own launch's processes
        return
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield
    deadline = time.monotonic() + EXIT_S
    while (left := marked_processes(value)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.fixture
def closed_doors(no_process_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test starts listens on sockets, and all of them are for this host alone."""
    file = tmp_path_factory.mktemp("doors") / "listening"
    with watched(os.environ[MARK], file):
        yield
    lines = file.read_text().splitlines()
    assert lines
    assert [line for line in lines if is_open(line.split()[0])] == []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--since",
        metavar="REF",
        help="skip conditional tests that import nothing that has changed since the merge base with REF",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find out once, in the process that has the workers, which conditional tests run."""
    if hasattr(config, "workerinput"):
        config.stash[UNCHANGED] = config.workerinput["unchanged"]
    else:
        config.stash[UNCHANGED] = changes.left_out(config.option.since) if config.option.since else {}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["unchanged"] = node.config.stash[UNCHANGED]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around what pytest-xdist does with groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Give what starts process groups a time limit, and one worker to those of a file that share a warm launcher.

    The longest come first, as far as ``durations.csv`` knows them: a long test that is begun last would keep one
    worker busy while the others have nothing left. Torchrun and a command keep nothing between launches: any worker
    will do for them.
    """
    recorded, took_s = durations.read_recorded(), {}
    for item in items:
        file = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        for begin in (begin for begin in changes.CONDITIONAL if file.startswith(begin)):
            item.add_marker(pytest.mark.conditional)
            if reason := config.stash[UNCHANGED].get(begin):
                item.add_marker(pytest.mark.skip(reason=reason))
        spawns, shares = item.get_closest_marker("spawn") is not None, _shares_launcher(item)
        alone = hasattr(item, "callspec") and item.callspec.params.get("launcher") in ("torchrun", "cmd")
        cost = recorded.get(file, durations.Cost(tests=1))
        is_group = shares and not alone and cost.wall_s < SPLIT_S
        took_s[item] = cost.wall_s if is_group else cost.wall_s / cost.tests
        if spawns and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2 * LIMIT_S))
        if is_group:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))
    yield
    items.sort(key=took_s.__getitem__, reverse=True)  # after pytest, which puts what shares a launcher side by side
    for item in items if "PYTEST_XDIST_WORKER" in os.environ else ():
        _name_group(item)


def pytest_collection_finish() -> None:
    """Exclude torch's objects from garbage collection, which takes longer than most tests, and compute with one thread.

    One thread is what a rank has, and several threads in four workers on two cores wait for each other.
    """
    gc.freeze()
    gc.enable()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _name_group(item: pytest.Item) -> None:
    """Do what pytest-xdist means to do, and cannot where an id is no text (pytest 9.2, pytest-xdist issue 1386)."""
    group = item.get_closest_marker("xdist_group")
    if group is not None and not item.nodeid.endswith(f"@{group.args[0]}"):
        item._id = item.id.parse(f"{item.nodeid}@{group.args[0]}")  # type: ignore[attr-defined]


def _shares_launcher(item: pytest.Item) -> bool:
    return not SHARED.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def made_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeLauncher]:
    """A launcher by name, made once for all tests of this process: one launch must not harm the next.

    What compares two sides has another one of the same name for the second.
    """
    kinds = dict(LAUNCHERS)  # before a run inside this process has its own
    made: dict[tuple[str, int, tuple[str, ...]], tuple[Launcher, LauncherSetup]] = {}

    def make(name: str, side: int = 0, preload: Sequence[str] = ()) -> Launcher:
        key = name, side, tuple(preload)
        if key not in made:
            directory = tmp_path_factory.mktemp("agent")
            setup = LauncherSetup(directory=directory, session=uuid.uuid4().hex, preload=key[2], engine=ENGINE)
            made[key] = (kinds.get(name) or LAUNCHERS[name]).make(setup), setup
        return made[key][0]

    yield make
    for launcher, setup in made.values():
        launcher.close()
        assert processes.find_marked(SESSION_VARIABLE, setup.session) == []
        assert [path for path in setup.directory.rglob("*") if path.is_socket()] == []


@pytest.fixture(scope="module", params=["warm", pytest.param("torchrun", marks=pytest.mark.nightly)])
def launcher(request: pytest.FixtureRequest, made_launcher: MadeLauncher) -> Launcher:
    """The second imports torch in every rank, for seconds."""
    return made_launcher(request.param)


@pytest.fixture(scope="module")
def cuda_launcher(made_launcher: MadeLauncher) -> Launcher:
    """A launcher whose ranks have the simulated CUDA."""
    from support.cuda_launcher import STAND_IN_CUDA

    return made_launcher(STAND_IN_CUDA)


@pytest.fixture
def on_cuda(cuda_launcher: Launcher, tmp_path: Path, request: pytest.FixtureRequest) -> Launch:
    """Launches bodies of the test's own file on the simulated CUDA, with a device for each rank."""
    return Launch(cuda_launcher, tmp_path, request.path, device="cuda")


@pytest.fixture
def on_cuda_apart(made_launcher: MadeLauncher, tmp_path: Path, request: pytest.FixtureRequest) -> Launch:
    """The same with another agent: for variables that are read when torch is loaded, which cost the others theirs."""
    from support.cuda_launcher import STAND_IN_CUDA

    return Launch(made_launcher(STAND_IN_CUDA, side=1), tmp_path, request.path, device="cuda")


@pytest.fixture
def run_inside(pytester: pytest.Pytester, made_launcher: MadeLauncher, monkeypatch: pytest.MonkeyPatch) -> RunInside:
    """Runs pytest with real ranks inside this process, so that no run loads torch for itself.

    Other tests run at the same time: what they compute is no excuse of a regression. A project that changes our tables
    leaves them changed. And warnings are errors in it, too. Not for one that imports
    torch's own helpers for tests: they freeze torch's flags for the whole process.
    """
    kind = LAUNCHERS["warm"]
    monkeypatch.setattr(case, "busier_cores", lambda entry, launches: 0.0)
    monkeypatch.setattr(case, "crowding", lambda entry, launches, cores: None)

    def run(*arguments: str) -> pytest.RunResult:
        lent: list[Lent] = []

        def lend(setup: LauncherSetup) -> Launcher:
            lent.append(Lent(made_launcher("warm", len(lent), setup.preload)))
            return lent[-1]

        monkeypatch.setitem(LAUNCHERS, "warm", replace(kind, make=lend))
        result = pytester.runpytest_inprocess(*arguments)
        monkeypatch.setitem(LAUNCHERS, "warm", kind)
        assert [left for launcher in lent for left in launcher.leftovers()] == []
        assert "torch.testing._internal.common_utils" not in sys.modules
        return result

    return run


@pytest.fixture
def own_rows() -> Iterator[None]:
    """Tables of this process, to which runs inside it may add rows (the simulated launcher stays)."""
    importlib.import_module("pytest_distbench.testing")
    with contextlib.ExitStack() as stack:
        for table in (LAUNCHERS, LAUNCH_KINDS, AROUND, METRIC_KINDS, REASONS, RULES):
            stack.enter_context(mock.patch.dict(table))
        yield


@pytest.fixture
def pytester(
    pytester: pytest.Pytester, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Pytest's own, without the plugins that only tests marked ``other_plugins`` are about."""
    if request.node.get_closest_marker("other_plugins") is None:
        for name, value in ALONE.items():
            monkeypatch.setenv(name, value)
    return pytester


@pytest.fixture
def project(pytester: pytest.Pytester) -> Callable[[str], pytest.Pytester]:
    """A project whose ranks are simulated: the plugin's own behaviour in milliseconds."""

    def make(test: str) -> pytest.Pytester:
        pytester.makeconftest('pytest_plugins = ["pytest_distbench.testing"]\n')
        pytester.makeini("[pytest]\ndistbench_launcher = stand-in\n")
        pytester.makepyfile(test_it=textwrap.dedent(test))
        return pytester

    return make


@pytest.fixture
def driver() -> Iterator[Callable[[Host], None]]:
    """Pretend that the driver shows a machine."""
    with contextlib.ExitStack() as stack:
        yield lambda host: stack.enter_context(simulated(host)) and None


@pytest.fixture
def gpus(driver: Callable[[Host], None]) -> Callable[[int], None]:
    """Pretend that the driver shows some GPUs."""
    return lambda count: driver(Host(cards=h100s(count)))
