"""The launcher whose ranks take a CPU for CUDA: real groups, under a name of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from support.launching import Launch

from pytest_distbench.worker.context import RankContext

ROOT = Path(__file__).parents[2]


def is_joined_by_nccl(rank: RankContext) -> None:
    from pytest_distbench.testing import cuda

    assert rank.backend == "nccl"
    assert cuda.calls[:2] == [f"set_device {rank.local_rank}", "init_process_group nccl"]
    assert dist.get_backend() == "gloo"


@pytest.mark.spawn
def test_ranks_have_nccl_which_is_gloo(on_cuda: Launch) -> None:
    record = on_cuda("is_joined_by_nccl", backend="nccl")

    assert record.reason == ""
    assert record.software["cuda"] == record.software["nccl"] == "stand-in"


@pytest.mark.spawn
@pytest.mark.timeout(900)
def test_the_shipped_suites_run_with_gpu_and_are_stored_under_its_own_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites", "-p", "no:cacheprovider", "-p", "pytest_distbench.testing"]
    command += ["-p", "pytest_distbench.testing.nvml", "--distbench-launcher=stand-in-cuda", "--gpu", "--world-size=2"]
    command += ["--distbench-update", "--distbench-launches=2", "--distbench-max-message=1KiB"]
    command += [f"--distbench-baselines={tmp_path}/stored", f"--distbench-json={tmp_path}/run.json"]
    command += ["-k", "test_all_reduce and float32 or logistic"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "DISTBENCH_NVML": "8xH100"}, capture_output=True, text=True, check=False
    )
    results = json.loads((tmp_path / "run.json").read_text())["results"]
    stored = {path.name for path in tmp_path.glob("stored/nvidia-h100-*/**/*.json")}

    assert done.returncode == 0, done.stdout
    assert [result["case"]["device"] for result in results] == ["cuda"] * 3
    assert stored == {"float32-ws2.nccl.stand-in-cuda.json", "ws2.nccl.stand-in-cuda.json"}
    clocks = [m for r in results for m in r["launches"][0]["measurements"] if m["name"] in ("latency", "step_time")]
    assert len(clocks) > 5
    assert all("host_s" in clock["companions"] for clock in clocks)
