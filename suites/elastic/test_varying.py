"""Does it hurt to change the number of workers? Convergence on 2, on 4, and on 2 to 4, as report 002 compared them.

``pytest suites/elastic -k varying --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
accuracy`` (epoch, accuracy of gang 2, gang 4, elastic 2-4). With fewer cores than workers no clock means anything, and
none is judged: what they learn does not depend on it.
"""

import pytest

from pytest_distbench.elastic import join, leave

# What a training learns is the same where the stock engine takes the place of the fast one, under another torch.
pytestmark = pytest.mark.filterwarnings("default:engine stock in place of fast")

TRAIN = "resnet20_varying.py::train"
PLAN = [join(at_step=50, nodes=2), leave(at_step=140), leave(at_step=180)]


@pytest.mark.full
def test_varying(elastic, distbench, judge_rate):
    """Two workers, four, three, and two again: nobody skips a sample, all learn as much, at a rate of their number."""
    options = {"engine": "fast", "oversubscribed": True}
    fixed = {"params": {"epochs": 16}, **options}
    two = elastic(TRAIN, nodes=2, name="gang2", **fixed)
    four = elastic(TRAIN, nodes=4, name="gang4", **fixed)
    varying = elastic(
        TRAIN, nodes=(2, 4), plan=PLAN, ends_after=60, params={"epochs": 10_000}, name="elastic2-4", **options
    )
    # No digit repeats where nodes come and go: there are floors, and no baselines.
    distbench.judge(
        "least_accuracy",
        lambda *runs: min(run["final_accuracy"] for run in runs),
        of=[two, four, varying],
        better="info",
        at_least=0.9,
    )
    distbench.judge(
        "accuracy_lost",
        lambda fewer, more, moving: min(fewer["final_accuracy"], more["final_accuracy"]) - moving["final_accuracy"],
        of=[two, four, varying],
        better="info",
        at_most=0.03,
    )
    for nodes in (3, 4):
        judge_rate(varying, two, nodes=nodes)
