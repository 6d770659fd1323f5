"""The input of a training in whole runs: a slow loader is caught where there is one, and real data is read where it lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import RunInside
from support.object_store import serve

from pytest_distbench.workloads import cifar10
from pytest_distbench.workloads.storage import storage_at

SUITE = Path(__file__).parents[2] / "suites" / "scaling"

SLOW = """
    import os
    import time

    from pytest_distbench.workloads.inputs import Images

    from reading import train

    read = Images.__getitem__

    def read_slowly(images, index):
        time.sleep(float(os.environ["READS_SLOWER_S"]))
        return read(images, index)

    def slow(rank):
        Images.__getitem__ = read_slowly
        train(rank)
"""
TEST = """
    import pytest

    @pytest.mark.parametrize("kind", ["synthetic", "generated"])
    def test_input(distbench, kind):
        distbench.run("slow.py::slow", params={"kind": kind}, launches=1, tolerance=3)
"""
"""A tolerance of three times what it was: neighbours on a busy machine do not reach it, the fault is beyond by far."""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\ndistbench_world_size = 2\n")
    pytester.makepyfile(reading=(SUITE / "reading.py").read_text(), slow=SLOW)
    return pytester


def verdicts_of(project: pytest.Pytester) -> dict[str, dict[str, str]]:
    """What was said of each metric, by the kind of input."""
    results = json.loads((project.path / "run.json").read_text())["results"]
    return {
        next(kind for kind in ("synthetic", "generated", "real") if kind in case["nodeid"]): {
            v["metric"]: v["kind"] for v in case["verdicts"]
        }
        for case in results
    }


@pytest.mark.spawn
def test_a_slow_loader_is_red_on_generated_input_and_green_on_synthetic(
    project: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(test_it=TEST)
    monkeypatch.setenv("READS_SLOWER_S", "0")
    run_inside("--distbench-update", "--distbench-launches=2").assert_outcomes(passed=2)
    monkeypatch.setenv("READS_SLOWER_S", "0.1")  # 1.6 s a batch, beside a step of some 10 ms
    result = run_inside("--distbench-json=run.json")

    result.assert_outcomes(passed=1, failed=1)
    found = verdicts_of(project)
    assert {found["generated"][metric] for metric in ("step", "samples_per_second")} == {"regressed"}
    assert "regressed" not in found["synthetic"].values()
    result.stdout.fnmatch_lines(["*load*"])
    print(result.stdout)
