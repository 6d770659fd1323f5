"""Two jobs that want more slots than the pool has: gang against elastic scheduling, as report 002 compared them.

``pytest suites/elastic -k pool --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
pool`` (policy, job, submitted, started, ended, workers over time, makespan, idle gap, utilisation). Real computation,
one slot per core: A needs one of the two, and B wants both. Gang scheduling leaves the other one idle while A trains.
"""

import pytest

from pytest_distbench.elastic import job

TRAIN = "resnet20_elastic.py::train"


@pytest.mark.full
@pytest.mark.distbench(bounds={"most_workers[job=B]": ">= 2", "slots_kept": "<= 5 s"})
def test_pool(elastic_pool, distbench, tolerance):
    # A has to outlast B's start by far: a few seconds, which are many more steps on a GPU.
    longer = 8 if distbench.device == "cuda" else 1
    jobs = [
        job("A", TRAIN, nodes=1, params={"epochs": 20 * longer}),
        job("B", TRAIN, nodes=(1, 2), params={"epochs": 24 * longer}, submit_s=1, seed=1),
    ]
    gang = elastic_pool(jobs, slots=2, policy="gang", engine="fast", name="gang", tolerance=tolerance)
    elastic = elastic_pool(jobs, slots=2, policy="elastic", engine="fast", name="elastic", tolerance=tolerance)
    distbench.judge(
        "makespan_ratio",
        lambda rigid, moving: moving["makespan"] / rigid["makespan"],
        of=[gang, elastic],
        better="lower",
        tolerance=tolerance,
    )
    # What gang scheduling leaves idle does not hang on the speed of the machine: 0.29 of the slots' seconds, and 0.07
    # under elastic scheduling on two virtual cores. A policy that is no better than gang leaves as much idle: 1.
    distbench.judge(
        "idle_ratio",
        lambda rigid, moving: (1 - moving["allocated"]) / (1 - rigid["allocated"]),
        of=[gang, elastic],
        better="info",
        at_most=0.6,
    )
    # While A or B trains somebody does, so nobody trains only while B grows: a second, and on GPUs ten.
    distbench.judge(
        "nobody_trains",
        lambda moving: moving["idle_gap"],
        of=elastic,
        unit="s",
        better="info",
        at_most="6 s" if distbench.device == "cpu" else "20 s",
    )
