"""What a training is worth when more workers share a fixed batch: report 001's table of final accuracies.

Each row is a case with its rate, top-1 and top-5 (``samples_per_second``, ``final_accuracy``, ``final_top5``). The
report trained with 256 in all, at the same learning rate on 2, 4 and 8 GPUs, and wants another schedule on 8:
here it is *warm-up*, which rises to that rate over log2(k) epochs.
"""

import pytest

pytestmark = [pytest.mark.full, pytest.mark.world_size(2, 4, 8)]


@pytest.mark.parametrize("schedule", ["fixed", "warm-up"])
def test_resnet20(time_to_accuracy, distbench, tolerance, schedule):
    """ResNet-20, all epochs: the last accuracies count, and a floor that each row is above."""
    workers = distbench.world_size
    preset, batch, rate, epochs, floor = (
        ("report", 256, 0.1, 164, 0.8) if distbench.data else ("small", 64, 0.1, 8, 0.9)
    )
    by_workers = {"fixed": {"rate": rate, "scaling": 0.0}, "warm-up": {"rate": rate / workers, "scaling": 1.0}}
    params = {
        "preset": preset,
        "data": distbench.data,
        "batch": batch // workers,
        "epochs": epochs,
        "min_epochs": epochs,
        **by_workers[schedule],
    }
    time_to_accuracy("resnet20.py::train", goal=floor, params=params, tolerance=tolerance)
