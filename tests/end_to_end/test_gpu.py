"""What the plugin does on a GPU: on one of this machine if there is one, and always on the simulated CUDA.

Both run the same checks, so that they are known to work before there is a GPU. Two ranks share it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import faults
import gpu_acceptance
import pytest
from support import gpu_bodies
from support.cuda_launcher import STAND_IN_CUDA
from support.launching import Launch
from support.nvml import HOSTS
from support.processes import wait_for
from support.repositories import git

from pytest_distbench.commands.cli import main
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.machine.locks import lease
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.files import read_run_record

ROOT = Path(__file__).parents[2]
GPUS = read_gpus(os.environ).visible
"""Those that whoever started the tests lets them see: in a test the variable is gone."""
LOCKS = tempfile.gettempdir()
"""Folder where every run on this machine looks for locks; tests have their own."""

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(600)]

needs_gpu = pytest.mark.skipif(not GPUS, reason="needs an NVIDIA GPU and its driver")
on_each = pytest.mark.parametrize(
    "launcher",
    [STAND_IN_CUDA, *(pytest.param(name, marks=needs_gpu) for name in ("warm", "torchrun"))],
    indirect=True,
    scope="module",
)
HOST = gpu_acceptance.MADE_UP["DISTBENCH_NVML"]
"""The simulated host."""
SHARED = {"backend": "nccl", "device": "cuda", "devices": [0, 0], "shares_gpu": True}
"""Options of a launch with two ranks on one GPU."""

HANG_S = {STAND_IN_CUDA: 4.0}
"""Time-out of launches that are to reach it. NCCL's first collective on a cold device takes seconds."""
BODIES = (faults.raises, faults.exits, faults.is_killed, faults.hangs)
ON_GPU = [fault for fault in faults.FAULTS if fault.body in BODIES]
SLACK_BYTES = 64 * 2**20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The UUID of a GPU, which is all that is visible, and nobody else's meanwhile. Its memory is given back."""
    uuid = GPUS[0].uuid
    with contextlib.ExitStack() as held:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", LOCKS)
            held.enter_context(lease([uuid], on_wait=print))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
        before = used_bytes(uuid)
        yield uuid
        wait_for(lambda: used_bytes(uuid) <= before + SLACK_BYTES, limit_s=20)


def used_bytes(uuid: str) -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).used)
    finally:
        pynvml.nvmlShutdown()


@pytest.fixture
def launch(launcher: Launcher, request: pytest.FixtureRequest, tmp_path: Path) -> Launch:
    if launcher.name != STAND_IN_CUDA:
        request.getfixturevalue("gpu")
    return Launch(launcher, tmp_path, Path(gpu_bodies.__file__))


@on_each
def test_each_timing_mode_measures_the_devices_time(launch: Launch) -> None:
    record = launch("times_kernels", world_size=1, **{**SHARED, "devices": [0]})
    quickest = {m.key: m.spread.minimum for m in record.measurements if m.spread is not None}

    assert record.reason == ""
    assert record.software["nccl"]
    for mode in ("per-iteration", "batch", "graph"):
        ratio = quickest[f"long[clock={mode}]"] / quickest[f"short[clock={mode}]"]
        assert ratio == pytest.approx(gpu_bodies.TIMES, rel=0.1), mode


@on_each
def test_a_sweep_is_checked_and_has_a_fingerprint(launch: Launch) -> None:
    params = {"collective": "all_reduce", "dtype": "float32", "sizes": [1024], "iterations": 5, "warmup": 2}
    record = launch("collective_sweep", params={**params, "cache": "hot"}, **SHARED)

    assert record.reason == ""
    assert {m.key: m.value for m in record.measurements}["wrong_elements[message_bytes=1024]"] == 0
    [row] = record.fingerprints["latency[message_bytes=1024]"].collectives["all"]
    assert (row.op, row.dtype, row.message_bytes, row.count) == ("all_reduce", "float32", 1024, 1)


def curve(record: LaunchRecord) -> list[float]:
    [found] = [m.values for m in record.measurements if m.better == "curve"]
    return [float(value) for value in found]


@on_each
def test_a_training_repeats_its_golden_curve_in_every_digit(launch: Launch) -> None:
    first, second = (launch("trains", **SHARED) for _ in range(2))

    assert (first.reason, second.reason) == ("", "")
    assert curve(first) == curve(second)
    assert len(set(curve(first))) == gpu_bodies.STEPS
    assert first.fingerprints == second.fingerprints
    assert {row.op for row in first.fingerprints["step_time"].collectives["all"]} == {"all_reduce"}


@on_each
@pytest.mark.parametrize("fault", ON_GPU, ids=lambda fault: fault.name)
def test_a_fault_is_detected_and_attributed(launch: Launch, fault: faults.Fault) -> None:
    launch.file = Path(faults.__file__)
    timeout_s = HANG_S.get(launch.launcher.name, 40.0) if fault.is_hang or fault.waits else 120.0
    record = launch(fault.body.__name__, timeout_s=timeout_s, **SHARED)

    assert re.match(fault.reason, record.reason)
    assert record.fates[0].rank == fault.root_cause


@dataclass(frozen=True)
class Suites:
    """A repository with the shipped suites, and how they are run; ``uuid``: the first GPU that the runs lease."""

    folder: Path
    options: list[str]
    variables: Mapping[str, str]
    uuid: str

    def run(self, name: str, *options: str, waits: bool = False) -> list[CaseResult]:
        """Run them; returns the record of that name. ``waits``: another process has the GPU until the run says so."""
        command = [sys.executable, "-m", "pytest", "suites", "--gpu", *self.options, *options]
        command.append(f"--distbench-json={name}.json")
        environment = {**os.environ, **self.variables}
        told = []
        with contextlib.ExitStack() as held:
            if waits:
                held.enter_context(lease([self.uuid], on_wait=pytest.fail))
            with subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True) as run:
                for line in run.stdout or ():
                    told.append(line)
                    if f"waiting for the run that uses {self.uuid}" in line:
                        held.close()
                        waits = False

        assert run.returncode == 0, "".join(told)
        assert not waits
        return list(read_run_record(self.folder / f"{name}.json").results)


def exact(results: list[CaseResult]) -> set[str]:
    """The verdicts of what no noise can move."""
    found = [verdict for result in results for verdict in result.verdicts if verdict.better in ("exact", "same")]
    return {verdict.kind for verdict in found}


@pytest.fixture(params=[pytest.param("stand-in", marks=pytest.mark.nightly), pytest.param("gpu", marks=needs_gpu)])
def suites(request: pytest.FixtureRequest, tmp_path: Path) -> Suites:
    """The smallest part of the shipped suites that comes to everything there is; ``make gpu`` runs them whole."""
    shutil.copytree(ROOT / "suites", tmp_path / "suites", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / ".gitignore").write_text("baselines/\n__pycache__/\n*.json\n*.html\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "the suites")
    options = ["-k", "test_all_reduce and float32 and not mlbench", "--distbench-max-message=1KiB"]
    if request.param == "gpu":
        return Suites(tmp_path, [*options, "--world-size=1"], {}, request.getfixturevalue("gpu"))
    two = [card.uuid for card in HOSTS[HOST].cards[:2]]
    variables = {**gpu_acceptance.MADE_UP, "CUDA_VISIBLE_DEVICES": ",".join(two)}
    return Suites(tmp_path, [*options, "--world-size=2", *gpu_acceptance.STAND_IN], variables, two[0])


def test_the_shipped_suites_come_from_lease_to_report(suites: Suites, capsys: pytest.CaptureFixture[str]) -> None:
    """A baseline is recorded and judged against, A/B with the same commit runs, and pytest-html and tables report it.

    Timings are not judged, so that no noise of the machine fails this test; everything exact is.
    """
    update = suites.run("update", "--distbench-update", "--distbench-launches=2", waits=True)
    again = suites.run("again", "--distbench-launches=1", "--distbench-tolerance=5", "--html=page.html")
    against = suites.run(
        "against",
        "--distbench-against=HEAD",
        "-o",
        "distbench_against_tolerance=5",
        "--distbench-launches=3:3",
    )

    for [result] in (update, again, against):
        assert result.case.device == "cuda"
        assert result.environment.gpu_host is not None
        assert {launch.gpus[0] for launch in result.launches} == {suites.uuid.removeprefix("GPU-")}
        latency = next(m for m in result.launches[0].measurements if m.name == "latency")
        assert "host_s" in latency.companions
    [stored] = suites.folder.glob("baselines/**/*.json")
    assert stored.relative_to(suites.folder / "baselines").parts[0] == update[0].environment.platform
    assert ".nccl." in stored.name
    assert exact(update) == {"new"}
    assert exact(again) == exact(against) == {"unchanged"}
    assert (again[0].reference.kind, against[0].reference.kind) == ("stored", "paired")

    assert "unchanged" in (suites.folder / "page.html").read_text()
    for table, cell in (("verdicts", "| test_all_reduce[float32-ws"), ("collectives", "| all_reduce | nccl |")):
        assert main(["report", str(suites.folder / "again.json"), "--table", table, "--format", "markdown"]) == 0
        assert cell in capsys.readouterr().out
