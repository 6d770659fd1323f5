"""What srun is told, with a stand-in for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.srun import ALL, write_srun

from pytest_distbench.launch.site.dial import Hello
from pytest_distbench.launch.starters import calls
from pytest_distbench.launch.starters.slurm import start_step

TELLS = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


@pytest.fixture(autouse=True)
def reach_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(calls, "addresses", lambda: ["127.0.0.1"])


def test_the_processes_of_a_step_call_from_each_node_and_say_who_they_are(tmp_path: Path) -> None:
    write_srun(tmp_path, ALL)
    relay = [sys.executable, "-m", "pytest_distbench.launch.site.dial"]
    step = start_step(
        ["n2", "n1"], lambda where: [*relay, *where], gpus=0, variables=os.environ, log=tmp_path / "log", session="s"
    )
    try:
        found = step.take(Hello)
        assert [call.said.host for call in found] == ["n2", "n1"]
        assert {call.said.address for call in found} == {"127.0.0.1"}
        assert step.is_alive
        for call in found:
            call.line.close()
    finally:
        step.kill()
    assert not step.is_alive


def told_to_srun(folder: Path, *, gpus: int, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The words of srun, and the environment of what it starts."""
    write_srun(folder, '"$@"')
    step = start_step(
        ["n1"],
        lambda where: [sys.executable, "-c", TELLS, str(folder / "told")],
        gpus=gpus,
        variables={**os.environ, **variables},
        log=folder / "log",
        session="s",
        python_path=["/a", "", "/b"],
    )
    assert step.wait(60) == 0
    return (folder / "srun.words").read_text().split(), json.loads((folder / "told").read_text())


OF_THE_JOB = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_GPUS_PER_TASK": "1",  # salloc --ntasks-per-node=8 --gpus-per-task=1
    "SLURM_TRES_PER_TASK": "cpu=12,gres/gpu=1",  # the same since Slurm 24
    "SLURM_NTASKS_PER_GPU": "1",
    "SLURM_GPUS": "16",
    "SLURM_CPUS_PER_TASK": "12",
    "SRUN_CPUS_PER_TASK": "12",
    "SLURM_MEM_PER_GPU": "64000",
    "SLURM_GPU_BIND": "single:1",
    "SLURM_EXACT": "1",
    "SLURM_HINT": "nomultithread",
    "SLURM_THREADS_PER_CORE": "1",
}


def test_a_step_takes_over_nothing_of_what_the_jobs_tasks_were_given(tmp_path: Path) -> None:
    kept = {"MINE": "1", "SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "2"}
    _, told = told_to_srun(tmp_path, gpus=0, **OF_THE_JOB, **kept)

    assert OF_THE_JOB.keys() & told.keys() == set()
    assert {name: told[name] for name in kept} == kept
    assert (told["PYTHONPATH"], told["DISTBENCH_SESSION"]) == ("/a:/b", "s")


@pytest.mark.parametrize(("gpus", "wanted"), [(0, []), (4, ["--gpus-per-node=4", "--gpu-bind=none"])])
def test_each_process_of_a_step_has_all_gpus_of_its_node(tmp_path: Path, gpus: int, wanted: list[str]) -> None:
    words, _ = told_to_srun(tmp_path, gpus=gpus)

    assert [word for word in words if word.startswith("--gpu")] == wanted
