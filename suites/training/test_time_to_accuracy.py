"""Short trainings to a target accuracy: steps are exact for a seed, times are judged with their noise."""


def test_resnet20_digits(time_to_accuracy, tolerance):
    """ResNet-20 on the digits images to 97 %."""
    time_to_accuracy("resnet20.py::train", goal=0.97, params={"max_steps": 300}, tolerance=tolerance)


def test_logistic_regression(time_to_accuracy, tolerance):
    """L2 logistic regression, even against odd digits, to 89 %."""
    time_to_accuracy("logistic_regression.py::train", goal=0.89, params={"max_steps": 600}, tolerance=tolerance)
