"""Nodes that leave and join, compared with nodes that stay: the tables of report 000.

``pytest suites/elastic -k cycle --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
elastic`` (a: setup, epochs, time, accuracy, top5, loss), ``--table epochs`` (b: each epoch and that of the fixed run,
with rows for the cost of changes) and ``--table events`` (the cost of each change).
It computes for real, one node per core.
"""

import pytest

from pytest_distbench.elastic import cycle

# Where the fast engine does not hold the stock one takes its place, and its numbers meet none of the other's.
pytestmark = pytest.mark.filterwarnings("default:engine stock in place of fast")

TRAIN = "resnet20_elastic.py::train"


def test_cycle(elastic, distbench, tolerance, judge_rate):
    """One of two nodes comes and goes; every sample of every epoch is trained on once, or this fails."""
    options = {"engine": "fast", "tolerance": tolerance}
    fixed = elastic(TRAIN, nodes=2, params={"epochs": 8}, name="fixed", **options)
    cycled = elastic(
        TRAIN,
        nodes=(1, 2),
        plan=cycle(period_s=2, times=1),
        ends_after=100,  # steps: the newcomer may take as long as it likes, and the training learns as much
        params={"epochs": 10_000},
        name="cycle",
        **options,
    )
    distbench.judge(
        "lost",
        lambda still, moving: 1 - moving["goodput"] / still["goodput"],
        of=[fixed, cycled],
        better="lower",
        tolerance=tolerance,
    )
    judge_rate(cycled, fixed, nodes=1)
    distbench.judge(
        "accuracy_lost",
        lambda still, moving: still["accuracy"] - moving["accuracy"],
        of=[fixed, cycled],
        better="info",
        at_most=0.05,
    )


@pytest.mark.full
def test_setups(elastic, distbench, tolerance):
    """Report 000's summary: two nodes, one node, and one with another that leaves and joins, in three periods."""
    options = {"engine": "fast", "params": {"epochs": 24}, "tolerance": tolerance}
    two = elastic(TRAIN, nodes=2, name="2-0", **options)
    one = elastic(TRAIN, nodes=1, name="1-0", **options)
    cycled = [
        elastic(TRAIN, nodes=(1, 2), plan=cycle(period_s=period_s), name=f"1-1-{period_s}s", **options)
        for period_s in (3, 5, 8)
    ]
    distbench.judge(
        "speedup",
        lambda more, fewer: more["samples_per_second[nodes=2]"] / fewer["samples_per_second[nodes=1]"],
        of=[two, one],
        better="higher",
        tolerance=tolerance,
    )
    # Of the same epochs all learn as much, however often a node came and went.
    distbench.judge(
        "accuracy_lost",
        lambda *runs: max(run["accuracy"] for run in runs) - min(run["accuracy"] for run in runs),
        of=[two, one, *cycled],
        better="info",
        at_most=0.08,
    )
