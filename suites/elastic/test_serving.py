"""A training that yields to a serving process by a timetable of slots, as report 002 ran them.

``pytest suites/elastic -k serving --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table
serving`` (time, wanted, serving, training, total, capacity). One slot per core: the serving is a process that loads a
model in its slot and says when it is ready; the training has what is left of the slots.
"""

import pytest

from pytest_distbench.elastic import job, serving


@pytest.mark.distbench(bounds={"most_workers": ">= 2", "slots_kept": "<= 5 s"})
def test_serving(elastic_pool, tolerance):
    elastic_pool(
        job("train", "resnet20_elastic.py::train", nodes=(1, 2), params={"epochs": 10_000}, ends_after=40),
        slots=2,
        policy="elastic",
        engine="fast",
        serving=serving("resnet20_serving.py::load", demand=[(1, 1), (7, 0)]),
        tolerance=tolerance,
    )
