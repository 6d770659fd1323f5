"""The trainings of report 004 to their goals: what a seed computes is judged exactly, times with their noise.

Without options each is small: a small model on data that is generated in the format of the report's, seconds on two CPU
cores. With ``--distbench-data DIR`` the same code trains what the report did, on the data that lies there: a training
is a file beside this one, and its table ``PRESETS`` has both.
"""

import pytest

pytestmark = pytest.mark.world_size(1, 2, 4)


@pytest.fixture
def train_to(time_to_accuracy, distbench, tolerance):
    """Train a task of the report to a goal: ``train_to("resnet20", small=0.97, report=0.8)``.

    What else is named goes to the body beside ``preset``, ``goal`` and ``data``.
    """

    def train(task, *, small, report, seeds=(0,), **params):
        preset, goal = ("report", report) if distbench.data else ("small", small)
        params = {"preset": preset, "data": distbench.data, **params}
        return time_to_accuracy(f"{task}.py::train", goal=goal, seeds=seeds, params=params, tolerance=tolerance)

    return train


@pytest.mark.distbench(takes="2 s")
def test_resnet20(train_to):
    """Task 1a: 80 % of CIFAR-10."""
    train_to("resnet20", small=0.97, report=0.80)


@pytest.mark.distbench(takes="1.7 s")
def test_logistic_regression(train_to):
    """Task 2a: 89 % of epsilon, with five seeds."""
    train_to("logistic_regression", small=0.89, report=0.89, seeds=range(5))
