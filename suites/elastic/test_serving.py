"""A training that yields to a serving process whose load rises and falls, as report 002 ran them.

``pytest suites/elastic -k serving --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
serving`` (time, serving, training, total, capacity, p95). Real computation, one slot per core: a replica answers
requests over HTTP that come as a seed draws them, whether or not those before have been answered; the training has what
is left of the slots. Where the only two are in use, no replica is kept while there are no requests.
"""

import pytest

from pytest_distbench.elastic import job, serving


@pytest.mark.distbench(takes="13 s", bounds={"most_workers": ">= 2", "slots_kept": "<= 5 s"})
def test_serving(elastic_pool, tolerance):
    elastic_pool(
        job("train", "resnet20_elastic.py::train", nodes=(1, 2), params={"epochs": 10_000}, ends_after=40),
        slots=2,
        policy="elastic",
        engine="fast",
        serving=serving("resnet20_serving.py::load", demand=[(1, 20), (4, 40), (7, 0)], per_replica=60),
        tolerance=tolerance,
    )
