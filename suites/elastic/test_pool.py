"""Two jobs that want more slots than the pool has: gang against elastic scheduling, as report 002 compared them.

``pytest suites/elastic -k pool --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
pool`` (policy, job, submitted, started, ended, workers over time, makespan, idle gap, utilisation). Real computation,
one slot per core: A needs one of the two, and B wants both. Gang scheduling leaves the other one idle while A trains.
"""

from pytest_distbench.elastic import job

TRAIN = "resnet20_elastic.py::train"


def test_pool(elastic_pool, distbench, tolerance):
    jobs = [
        job("A", TRAIN, nodes=1, params={"epochs": 48}),
        job("B", TRAIN, nodes=(1, 2), params={"epochs": 48}, submit_s=1, seed=1),
    ]
    gang = elastic_pool(jobs, slots=2, policy="gang", name="gang", tolerance=tolerance)
    elastic = elastic_pool(jobs, slots=2, policy="elastic", name="elastic", tolerance=tolerance)
    distbench.judge(
        "makespan_ratio",
        lambda rigid, moving: moving["makespan"] / rigid["makespan"],
        of=[gang, elastic],
        better="lower",
        tolerance=tolerance,
    )
