"""The TrainJob of docs/kubernetes: its manifest against the schemas of its resources, and its entry point on hosts that
stand for pods, each with a network, a name and processes of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.slurm_cluster import command_of, why_not

from pytest_distbench.store.files import read_run_record

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "kubernetes"
SCHEMAS = json.loads((ROOT / "tests" / "support" / "trainjob.schema.json").read_text())["$defs"]
JOB, RUNTIME = yaml.safe_load_all((FOLDER / "trainjob.yaml").read_text())

SUITE = """
import os

def body(rank):
    import torch, torch.distributed as dist
    x = torch.ones(8)
    dist.all_reduce(x)
    rank.record("sum", float(x.sum()), better="exact")
    rank.record("pods", rank.node, better="exact", reduce="max")

def test_all(distbench):
    distbench.run(body)

def test_first(distbench):
    distbench.run(body, world_size=2)

def test_fails(distbench):
    assert os.environ["PET_NODE_RANK"] == "1"
"""


@pytest.mark.parametrize("document", [JOB, RUNTIME], ids=["job", "runtime"])
def test_the_manifest_is_of_its_resources(document: dict[str, Any]) -> None:
    jsonschema.validate(document, SCHEMAS[document["kind"]])


@pytest.mark.spawn
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_every_pod_runs_the_entry_point_and_ends_when_pytest_does(tmp_path: Path) -> None:
    """srun replaces Kubernetes: it starts the entry point on three hosts, with the variables that the Trainer sets."""
    shutil.copy(FOLDER / "pods.py", tmp_path)
    (tmp_path / "test_p.py").write_text(SUITE)
    engine = f"--distbench-launcher={sys.executable} pods.py --start {{nodes:2}} {{command}}"
    pytest_ = ["-m", "pytest", "test_p.py", "-p", "no:cacheprovider", "--world-size=4"]
    words = [sys.executable, "pods.py", sys.executable, *pytest_, engine, "--distbench-json=run.json"]
    pod = 'PET_NODE_RANK=$SLURM_PROCID "$@"; echo pod $SLURM_PROCID ended with $?'
    variables = {
        "PET_NNODES": "3", "PET_MASTER_ADDR": "10.77.0.11", "PET_MASTER_PORT": "29500", "PODS_KEY": "k",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    done = subprocess.run(
        command_of(3, ["srun", "--nodes=3", "--ntasks-per-node=1", "--mpi=none", "sh", "-c", pod, "sh", *words]),
        cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip

    ends = sorted(line for line in done.stdout.splitlines() if line.startswith("pod "))
    assert ends == ["pod 0 ended with 1", "pod 1 ended with 0", "pod 2 ended with 0"], done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    found = [
        {m.name: m.value for m in launch.measurements}
        for case in read_run_record(tmp_path / "run.json").results
        for launch in case.launches
    ]
    assert {(each["sum"], each["pods"]) for each in found} == {(8 * 4.0, 1), (8 * 2.0, 0)}
