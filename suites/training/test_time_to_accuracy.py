"""Short trainings to a target accuracy: what a seed computes is judged exactly, times with their noise."""

import pytest


@pytest.mark.distbench(takes="2 s")
def test_resnet20_digits(time_to_accuracy, tolerance):
    """ResNet-20 on the digits images to 97 %."""
    time_to_accuracy("resnet20.py::train", goal=0.97, params={"max_steps": 300}, tolerance=tolerance)


@pytest.mark.distbench(takes="1.7 s")
def test_logistic_regression(time_to_accuracy, tolerance):
    """L2 logistic regression, even against odd digits, to 89 %, with five seeds."""
    params = {"max_steps": 600}
    time_to_accuracy("logistic_regression.py::train", goal=0.89, seeds=range(5), params=params, tolerance=tolerance)
