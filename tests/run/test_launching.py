"""What the ranks of a launch are given, seen by a launcher that writes down their plan."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from support.nvml import HOSTS, simulated
from support.projects import RECORDER

from pytest_distbench.records.plan import LaunchPlan, read_work

Project = Callable[[str], pytest.Pytester]

TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": 0.02}})
"""


@pytest.fixture
def plan_of(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaunchPlan]:
    made = project(TEST)
    with (made.path / "conftest.py").open("a") as file:
        file.write(RECORDER)
    for name in ("OMP_NUM_THREADS", "MINE", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def plan(*options: str, **variables: str) -> LaunchPlan:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        result = made.runpytest_inprocess("--distbench-launcher=recorder", *options)
        result.assert_outcomes(passed=1)
        return msgspec.json.decode(
            (made.path / "plans-seen").read_bytes().splitlines()[-1], type=LaunchPlan, dec_hook=read_work
        )

    return plan


def test_a_rank_has_one_thread_and_the_launchers_variables_unless_the_user_has_set_them(
    plan_of: Callable[..., LaunchPlan],
) -> None:
    """One rank with the threads of the whole machine could not be compared with two of one each."""
    for world_size in (1, 2):
        plan = plan_of("--world-size", str(world_size))
        assert (plan.world_size, plan.variables["OMP_NUM_THREADS"], plan.set_threads) == (world_size, "1", 1)
        assert plan.variables["MINE"] == "1"
        assert "CUDA_DEVICE_ORDER" not in plan.variables

    plan = plan_of("--world-size", "1", OMP_NUM_THREADS="3,2", MINE="yes", RANK="7")
    assert (plan.variables["OMP_NUM_THREADS"], plan.set_threads, plan.variables["MINE"]) == ("3,2", 3, "yes")
    assert "RANK" not in plan.variables, "as an outer torchrun sets it"


def test_a_launch_knows_when_pytest_timeout_ends_its_test(plan_of: Callable[..., LaunchPlan]) -> None:
    before = time.monotonic()
    limited = plan_of("--timeout=60", "--timeout-method=thread").test_ends_at

    assert limited is not None
    assert before + 60 <= limited <= time.monotonic() + 60
    assert plan_of("-p", "no:timeout").test_ends_at is None
    assert plan_of("--timeout=60", "--distbench-attach=0").test_ends_at is None


def test_ranks_see_the_gpus_that_are_leased(plan_of: Callable[..., LaunchPlan]) -> None:
    with simulated(HOSTS["RTX 3060 and 4090"]):
        by_bus = plan_of("--gpu", "--world-size=2")
        fastest = plan_of("--gpu", "--world-size=1", CUDA_DEVICE_ORDER="FASTEST_FIRST", CUDA_VISIBLE_DEVICES="0")

    assert (by_bus.variables["CUDA_DEVICE_ORDER"], by_bus.devices) == ("PCI_BUS_ID", [0, 1])
    assert "CUDA_VISIBLE_DEVICES" not in by_bus.variables
    assert (fastest.variables["CUDA_DEVICE_ORDER"], fastest.devices) == ("FASTEST_FIRST", [0])
    assert fastest.variables["CUDA_VISIBLE_DEVICES"] == "GPU-4090"


STUCK = """
import pathlib
from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
from pytest_distbench.run.kinds import AROUND
from pytest_distbench.run.kinds import GpusAround
from pytest_distbench.testing import StandInLauncher

class Stuck(GpusAround):
    def close(self):
        raise OSError("it is stuck")

class Closing(StandInLauncher):
    def close(self):
        pathlib.Path("closed").touch()

AROUND["stuck"] = lambda setup: Stuck(setup.settings.gpus, on_progress=setup.on_progress)
LAUNCHERS["closing"] = LauncherKind(help="", make=lambda setup: Closing(setup.session))
"""


def test_a_row_around_launches_that_cannot_be_closed_leaves_no_launcher_and_no_run_directory(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST)
    with (made.path / "conftest.py").open("a") as file:
        file.write(STUCK)
    temporary = made.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))

    assert "it is stuck" in made.runpytest_subprocess("--distbench-launcher=closing").stderr.str()
    assert (made.path / "closed").exists()
    assert not [path for path in temporary.glob("distbench-*") if path.is_dir()]
