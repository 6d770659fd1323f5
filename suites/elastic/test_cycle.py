"""Nodes that come and go against nodes that stay: the tables of report 000.

``pytest suites/elastic -k cycle --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
elastic`` (a: setup, epochs, time, accuracy, top5, loss), ``--table cycle`` (b: each epoch beside the fixed run's, with
rows for what changes cost) and ``--table events`` (what each change cost). Real computation, one node per core.
"""

import pytest

from pytest_distbench.elastic import cycle

# Where the fast engine does not hold the stock one takes its place, and its numbers meet none of the other's.
pytestmark = pytest.mark.filterwarnings("default:engine stock in place of fast")

TRAIN = "resnet20_elastic.py::train"


@pytest.mark.distbench(takes="18 s")
def test_cycle(elastic, distbench, tolerance):
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
    distbench.judge(
        "lr_rule",
        lambda moving: moving["lr[nodes=2]"] / moving["lr[nodes=1]"],
        of=cycled,
        better="exact",
        at_least=2,
        at_most=2,
    )
    distbench.judge(
        "accuracy_lost",
        lambda still, moving: still["accuracy"] - moving["accuracy"],
        of=[fixed, cycled],
        better="info",
        at_most=0.05,
    )
