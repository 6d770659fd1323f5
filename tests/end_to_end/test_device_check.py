"""A GPU, a driver and a torch that do not fit each other are reported once, before the first test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nvml import HOSTS, VARIABLE, simulated
from support.projects import EXIT_USAGE, TEST, Project, run

from pytest_distbench.machine.gpus import read_gpus

LAUNCHER = """
from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
from pytest_distbench.testing import StandInLauncher

LAUNCHERS["here"] = LauncherKind(help="", make=lambda setup: StandInLauncher(setup.session))
"""
"""Its ranks are made up, and said to run on this host."""
STAYS = """
def pytest_itemcollected(item):
    item.add_marker("cpu")
"""


@pytest.fixture
def made(project: Project) -> Iterator[pytest.Pytester]:
    found = project(TEST)
    with (found.path / "conftest.py").open("a") as file:
        file.write(LAUNCHER)
    with simulated(HOSTS["8xH100"]):
        yield found


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12040)",
            "the driver does not fit this torch (*found version 12040)). Next: install *--torch-backend=auto*",
        ),
        ("No CUDA GPUs are available", "the rank sees no GPU (*). Next: check CUDA_VISIBLE_DEVICES *"),
        ("something else\nmore of it", "rank 0 raised *Error: something else. Next: python -c *"),
    ],
)
def test_an_error_that_would_stop_every_test_is_reported_once_with_the_next_step(
    made: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, error: str, text: str
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", error)
    result = run(made, "--gpu", "--distbench-launcher=here")

    assert result.ret == EXIT_USAGE
    where = "GPU 0 (NVIDIA H100 80GB HBM3; driver 570.124.06 runs CUDA 12.8 at most)"
    result.stderr.fnmatch_lines([f"ERROR: --gpu: torch * cannot compute on {where}: {text}"])
    assert len(result.errlines) <= 2


def test_tests_that_stay_on_the_cpu_ask_for_no_gpu(made: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "No CUDA GPUs are available")
    with (made.path / "conftest.py").open("a") as file:
        file.write(STAYS)
    result = run(made, "--gpu", "--distbench-launcher=here")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "cannot compute" not in result.stderr.str()


@pytest.mark.spawn
@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=" ".join)
@pytest.mark.skipif(bool(read_gpus(os.environ).visible), reason="the real one computes")
def test_a_torch_that_cannot_compute_on_gpus_is_reported_once(pytester: pytest.Pytester, options: list[str]) -> None:
    """This torch, as it is: without CUDA, or with CUDA and no driver."""
    pytester.makepyfile(
        "def body(rank):\n    pass\n\n\ndef test_a(distbench):\n    distbench.check(body)\n\n\ntest_b = test_a\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "support.nvml", "--gpu", "--world-size=1"]
    done = subprocess.run(
        [*command, *options],
        cwd=pytester.path,
        env={**os.environ, VARIABLE: "8xH100", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == EXIT_USAGE, done.stdout
    [line] = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("ERROR: --gpu: torch ")
    assert "uv pip install --reinstall-package torch --torch-backend=auto torch" in line
